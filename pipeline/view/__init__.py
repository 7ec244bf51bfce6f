"""What an output holds, shown to people: in a terminal, as a page, as a picture."""

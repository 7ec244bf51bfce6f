"""OUT/report.html: what an output holds, in one page that opens anywhere."""

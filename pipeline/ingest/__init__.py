"""From the meta JSON to conversations: which files, which rows, and what each row says."""

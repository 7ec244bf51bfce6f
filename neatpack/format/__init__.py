"""The contract on disk: what the files of an output hold, and how they are read. Writer and loader import it."""

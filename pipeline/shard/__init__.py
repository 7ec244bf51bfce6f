"""Packs on disk: plain webdataset tars, the index beside them, the ledger, and the manifest that says it is done."""

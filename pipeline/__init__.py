"""neatpack: multimodal conversations in, packed ready-to-train webdataset shards out.

    meta.json ──ingest──▶ Example ──measure──▶ Measured (token store) ──plan──▶ Plan
                                                                                │
              OUT/shards/*.tar + index + stats + ledger + manifest ◀──shard── Pack ◀──render── Sample

    ingest    ingest/meta.py (what to read), ingest/lines.py (rows by byte range), ingest/sharegpt.py (row -> Example)
    measure   measure/probe.py and video.py (headers), measure/length.py (Example -> Measured), measure/store.py
    plan      plan/knapsack.py and plan/balance.py (ints to ints), plan/assign.py (token store -> Plan)
    render    render/media.py (pixels), render/sample.py (Measured -> Sample), render/pack.py (Samples -> Pack)
    shard     shard/codec.py (Pack <-> tar), shard/writer.py (one shard), shard/commit.py (the rest), shard/verify.py

`pack.py` drives the stages, `tasks.py` runs them on Ray or in-process, `records.py` holds the nouns between them.
"""

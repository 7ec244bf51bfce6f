"""neatpack: multimodal conversations in, packed ready-to-train webdataset shards out.

    meta.json ──ingest──▶ Example ──measure──▶ Measured (token store) ──plan──▶ Plan
                                                                                │
              OUT/shards/*.tar + index + stats + ledger + manifest ◀──shard── Pack ◀──render── Sample

    ingest    ingest/meta.py (what to read), ingest/lines.py (rows by byte range), ingest/corpus.py (a data set as a run
              takes it), ingest/convert.py (row -> Example, by ingest/formats/)
    measure   measure/media.py (headers), measure/length.py (Example -> Measured), measure/part.py (the task),
              measure/store.py (the token store)
    plan      plan/knapsack.py and plan/balance.py (ints to ints), plan/assign.py (token store -> Plan)
    render    render/sample.py (Measured -> Sample), render/pack.py (Samples -> Pack)
    shard     shard/writer.py (the task: one shard), shard/note.py (what it leaves),
              shard/commit.py (the rest), shard/verify.py

`run.py` drives the stages, `runtime/engine.py` runs their tasks on Ray or in-process. The nouns: `records.py` between
the stages, `identity.py` (what an output is made from), `planned.py` (what is known before a pixel is decoded) and
`manifest.py` (what came out).
"""

if __name__ != "neatpack.pipeline":
    raise ImportError("import neatpack.pipeline, not pipeline: pipeline/ is part of the neatpack package")

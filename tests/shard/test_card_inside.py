"""What test_card.py proves by internals."""

from neatpack.pipeline.shard.sources import processor_name


def test_the_name_of_a_processor(tmp_path):
    download = tmp_path / "hub" / "models--Qwen--Qwen2.5-VL-7B-Instruct" / "snapshots" / "1a2b"
    download.mkdir(parents=True)
    assert processor_name("Qwen/Qwen2.5-VL-7B-Instruct") == "Qwen/Qwen2.5-VL-7B-Instruct"
    assert processor_name(str(download)) == "Qwen/Qwen2.5-VL-7B-Instruct"
    assert processor_name(str(tmp_path / "hub")) == "hub"

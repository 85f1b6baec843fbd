"""The reference of `filter_and_dedup.py`: the same rules and deduplication by DataTrove, in the peers' environment.

    .venv-peers/bin/python benchmarks/filter_and_dedup_by_datatrove.py FOLDER WORKERS

FOLDER has `input/*.parquet`; the last line is JSON: seconds, of the filters and of the rest, and documents left.
"""

import json
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.exact_dedup import (
    ExactDedupConfig,
    ExactDedupFilter,
    ExactDedupSignature,
    ExactFindDedups,
)
from datatrove.pipeline.dedup.minhash import MinhashDedupBuckets
from datatrove.pipeline.filters import (
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    fineweb_quality_filter,
)
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter

BUCKETS = 14


def text_of(document: Document) -> str:
    return document.text


# The rule about lists is off in this comparison, and its words, a third tokenization of each text, are not charged.
fineweb_quality_filter.split_into_words = lambda text, language: ("",)


def main() -> None:
    folder, workers = Path(sys.argv[1]), int(sys.argv[2])
    tasks = len(list((folder / "input").glob("*.parquet")))
    work = str(folder / "datatrove")
    exact = ExactDedupConfig(content_getter=text_of, only_dedup_in_index=False)
    filters = [
        GopherQualityFilter(min_stop_words=1, max_non_alpha_words_ratio=0.5),
        GopherRepetitionFilter(),
        FineWebQualityFilter(char_duplicates_ratio=0.1, new_line_ratio=1e9),
    ]
    # Each stage is as DataTrove's own examples have it; exact duplicates go first, so that near ones are fewer.
    stages = [
        (tasks, [ParquetReader(str(folder / "input")), *filters, ParquetWriter(f"{work}/filtered")]),
        (
            tasks,
            [ParquetReader(f"{work}/filtered"), ExactDedupSignature(f"{work}/sigs", exact, finder_workers=workers)],
        ),
        (workers, [ExactFindDedups(f"{work}/sigs", f"{work}/dups", exact)]),
        (
            tasks,
            [
                ParquetReader(f"{work}/filtered"),
                ExactDedupFilter(f"{work}/dups", exact),
                ParquetWriter(f"{work}/exact"),
            ],
        ),
        (tasks, [ParquetReader(f"{work}/exact"), MinhashDedupSignature(f"{work}/minhash")]),
        (BUCKETS, [MinhashDedupBuckets(f"{work}/minhash", f"{work}/buckets")]),
        (1, [MinhashDedupCluster(f"{work}/buckets", f"{work}/remove")]),
        (
            tasks,
            [ParquetReader(f"{work}/exact"), MinhashDedupFilter(f"{work}/remove"), ParquetWriter(f"{work}/kept")],
        ),
    ]
    ends = [time.perf_counter()]
    for number, (num_tasks, pipeline) in enumerate(stages):
        LocalPipelineExecutor(pipeline, tasks=num_tasks, workers=workers, logging_dir=f"{work}/logs/{number}").run()
        ends.append(time.perf_counter())
    seconds = {"seconds": ends[-1] - ends[0], "filter_seconds": ends[1] - ends[0], "dedup_seconds": ends[-1] - ends[1]}
    left = {
        name: sum(pq.read_metadata(path).num_rows for path in Path(work, name).glob("*.parquet"))
        for name in ("filtered", "exact", "kept")
    }
    print(json.dumps({**seconds, **left}))


if __name__ == "__main__":
    main()

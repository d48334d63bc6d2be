"""NoisyBench: datasets, noise, and prompts that hold both, paired over settings."""

from noisyjax.bench.build import Bench, DatasetBench, Dropped, load_bench
from noisyjax.bench.schema import BenchConfig
from noisyjax.bench.survey import list_tasks, show, validate_bench
from noisyjax.bench.task import Task, all_tasks, get_task

__all__ = [
    "Bench",
    "BenchConfig",
    "DatasetBench",
    "Dropped",
    "Task",
    "all_tasks",
    "get_task",
    "list_tasks",
    "load_bench",
    "show",
    "validate_bench",
]

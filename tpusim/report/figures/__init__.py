"""The figures of a report, a file each, and of a sweep; `registry` lists those of a report."""

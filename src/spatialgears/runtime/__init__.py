"""What every stage needs to run: seeds, files, threads, processes, progress and training loops."""

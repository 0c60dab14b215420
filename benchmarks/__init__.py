"""Benchmarks: ours against its peers and against what the machine can do, paired in one process.

`python -m benchmarks` runs all of them; each is a module of its own and is built like this:

    def run(settings: Settings) -> Section:
        times = interleave({"ours": ..., "TRL": ...}, repeats=settings.repeats, ...)
        rows = [ratio_row("exact KL, ...", times, peer="TRL", must=2.3, aim=4)]
        return Section(name="divergence", title="...", command="python -m benchmarks.divergence",
                       rows=rows)

    if __name__ == "__main__":
        main(run, __doc__)
"""

import memobench
table = memobench.published("board/typical", "large")
print(memobench.summarize(table, "bits_per_parameter").sort_values("bits_per_parameter").tail(4).to_string())
axes = memobench.plot(table, y="bits_per_parameter", x="n_params", hue="family")
axes.figure.savefig("board.png")

"""How each figure grows with the number waiting: lines on two logarithmic axes, as SVG."""

import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960, 560, 70, 370, 30, 50
COLOURS = ["#0b6e4f", "#c84630", "#2f5d9f", "#8a5a00", "#6b3fa0", "#a3195b", "#3d7a8a", "#5c5c5c"]


def write(path, series):
    points = [point for of in series.values() for point in of if point[1] > 0]
    low_x, high_x = 1000, 1000000
    low_y = 10 ** math.floor(math.log10(min(value for _, value in points)))
    high_y = 10 ** math.ceil(math.log10(max(value for _, value in points)))
    x = lambda at: LEFT + (math.log10(at) - math.log10(low_x)) / (math.log10(high_x) - math.log10(low_x)) * (WIDTH - LEFT - RIGHT)
    y = lambda value: HEIGHT - BOTTOM - (math.log10(value) - math.log10(low_y)) / (math.log10(high_y) - math.log10(low_y)) * (HEIGHT - TOP - BOTTOM)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13" role="img">',
        "<title>How each figure grows with the number waiting</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    at = low_x
    while at <= high_x:
        out.append(f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        out.append(f'<text x="{x(at):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{at:,}</text>')
        at *= 10
    value = low_y
    while value <= high_y * 1.001:
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
        value *= 10
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">waiting</text>')
    for index, (name, of) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        of = sorted(point for point in of if point[1] > 0)
        line = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in of)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="4" fill="{colour}"/>' for at, value in of]
        row = TOP + 20 + 24 * index
        out.append(f'<circle cx="{WIDTH - RIGHT + 22}" cy="{row - 4}" r="5" fill="{colour}"/>')
        out.append(f'<text x="{WIDTH - RIGHT + 34}" y="{row}">{name}</text>')
    out.append("</svg>")
    path.write_text("\n".join(out) + "\n")

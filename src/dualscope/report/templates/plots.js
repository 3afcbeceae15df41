"use strict";
// How every chart is drawn, in the report and in the explorer: plotly's plain data, in the style sheet's colours.
const Plots = (() => {
  const root = document.documentElement;

  // Colours are names in the data; the style sheet knows what they are now, in light or in dark.
  const css = name => getComputedStyle(root).getPropertyValue(name).trim();
  const coloured = value => {
    if (typeof value === "string") return /^@[a-z]+$/.test(value) ? css("--" + value.slice(1)) : value;
    if (Array.isArray(value)) return value.map(coloured);
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v)]));
    return value;
  };

  const axis = own => ({
    automargin: true, gridcolor: css("--grid"), zerolinecolor: css("--axis"), linecolor: css("--axis"), tickcolor: css("--axis"),
    ticks: "outside", ticklen: 4, fixedrange: true, zerolinewidth: 1.2, ...own,
    title: { standoff: 8, ...(own && own.title), font: { size: 12 } },
  });
  const styled = (plain, box) => {
    const layout = coloured(plain);
    const narrow = box.clientWidth < 560;
    const result = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
      font: { family: css("--sans"), size: narrow ? 11 : 12.5, color: css("--soft") },
      hoverlabel: { bgcolor: css("--wash"), bordercolor: css("--axis"), font: { color: css("--ink") } },
      ...layout,
      margin: { l: 10, r: 12, t: 8, b: 40, ...layout.margin },
      showlegend: false,
    };
    for (const key of Object.keys(layout)) if (/^[xy]axis\d*$/.test(key)) result[key] = axis(layout[key]);
    if (!result.xaxis) result.xaxis = axis({});
    if (!result.yaxis) result.yaxis = axis({});
    return result;
  };
  // Every line's name at its right end, in its colour; names are moved apart where they would lie on each other.
  const LETTERS = 22, TALL = 13;
  const plain = text => text.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");
  const escaped = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const wrapped = name => plain(name).split(" ").reduce((lines, word) => {
    const last = lines.at(-1);
    return last && (last + " " + word).length <= LETTERS ? [...lines.slice(0, -1), last + " " + word] : [...lines, word];
  }, []).map(escaped);
  const withEnds = (data, layout, box) => {
    const ends = [];
    for (const trace of data) {
      const at = trace.fill || !trace.mode?.includes("lines") ? -1 : trace.y.findLastIndex(value => value !== null);
      if (at >= 0 && trace.name && !ends.some(one => one.name === trace.name))
        ends.push({ name: trace.name, lines: wrapped(trace.name), y: trace.y[at], color: trace.line?.color ?? trace.marker?.color });
    }
    const log = layout.yaxis?.type === "log", place = value => log ? Math.log10(value) : value;
    const values = data.flatMap(({ y, error_y: bars }) => y.flatMap((value, i) =>
      value === null ? [] : [value + (bars?.array[i] ?? 0), value - (bars?.arrayminus[i] ?? 0)])).filter(value => !log || value > 0).map(place);
    if (!ends.length || !values.length) return layout;
    const pad = 0.05 * (Math.max(...values) - Math.min(...values) || 1);
    const range = layout.yaxis?.range ?? [Math.min(...values, log ? Infinity : 0) - pad, Math.max(...values) + pad];
    const height = Math.max(60, (layout.height ?? box.clientHeight) - 56), pixel = value => (place(value) - range[0]) / (range[1] - range[0]) * height;
    const width = Math.max(...ends.flatMap(one => one.lines.map(line => plain(line).length))) * 6.2 + 16;
    // Boxes from the lowest up, each group around the middle of its wishes.
    const groups = [];
    for (const one of ends.map(end => ({ ...end, at: pixel(end.y), tall: TALL * end.lines.length })).sort((a, b) => a.at - b.at)) {
      let own = { all: [one] };
      const spread = group => {
        group.tall = group.all.reduce((sum, box) => sum + box.tall, 0);
        const middle = group.all.reduce((sum, box) => sum + box.at, 0) / group.all.length;
        group.low = Math.min(Math.max(middle - group.tall / 2, -20), Math.max(-20, height + 8 - group.tall));
      };
      spread(own);
      while (groups.length && groups.at(-1).low + groups.at(-1).tall > own.low) { own = { all: [...groups.pop().all, ...own.all] }; spread(own); }
      groups.push(own);
    }
    const annotations = groups.flatMap(group => {
      let low = group.low;
      return group.all.map(one => {
        const at = low + one.tall / 2;
        low += one.tall;
        return { text: one.lines.join("<br>"), font: { size: 11, color: one.color }, showarrow: false, align: "left",
          xref: "paper", x: 1, xanchor: "left", xshift: 6, yref: "paper", y: 0, yanchor: "middle", yshift: at };
      });
    });
    return { ...layout, yaxis: { ...layout.yaxis, range }, annotations: [...(layout.annotations ?? []), ...annotations],
      margin: { ...layout.margin, r: Math.min(width, 0.45 * (layout.width ?? box.clientWidth)) } };
  };
  // On a phone there is no room beside the lines: the page's legend names them.
  const draw = (box, data, layout, ends = false) =>
    Plotly.react(box, coloured(data), styled(ends && (layout.width || innerWidth > 560) ? withEnds(data, layout, box) : layout, box),
      { displayModeBar: false, responsive: true });
  // A drawn chart as a picture of its own: on paper's ground, with a title and a legend.
  const picture = (box, title) => ({
    data: box.data.map(trace => ({ ...trace, showlegend: Boolean(trace.name) })),
    layout: {
      ...box.layout, paper_bgcolor: css("--paper"), plot_bgcolor: css("--paper"), showlegend: true,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, title: { text: title, font: { size: 15 }, x: 0.02 },
      margin: { ...box.layout.margin, t: 100 },
    },
  });
  return { css, coloured, styled, draw, picture };
})();

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
  const draw = (box, data, layout) =>
    Plotly.react(box, coloured(data), styled(layout, box), { displayModeBar: false, responsive: true });
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

"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const short = (value) => (value === null || value === undefined ? "—" : Number(value).toPrecision(3).replace("-", "−"));

// ------------------------------------------------------------------------------------------------------------- curves

// The library of the charts travels compressed: base64 of gzip.
async function loadPlotly() {
  const bytes = Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.nonce = document.currentScript?.nonce ?? nonce;
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}
const nonce = document.currentScript.nonce;

// Plotly reads a little HTML in names, which may come from a run.
const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

function lines(chart) {
  const dashes = ["solid", "dash", "dot", "dashdot"];
  return chart.traces.map((trace) => ({
    x: trace.x,
    y: trace.y,
    name: plain(trace.name),
    type: "scatter",
    mode: chart.across || trace.x.length < 25 ? "lines+markers" : "lines",
    // between two or three points nothing was measured: a faint line must not look like a trend
    line: { color: css(`--c${trace.colour % 8}`), width: trace.x.length < 4 ? 0.7 : 1.9, dash: dashes[trace.dash % 4] },
    marker: { size: trace.x.length < 4 ? 8 : 5 },
    text: (trace.steps ?? trace.x).map((step) => (trace.steps ? ` · step ${step}` : "")),
    hovertemplate: (chart.across ? "%{y:.4g} at %{x:.3g}" : "%{y:.4g}") + "%{text}",
  }));
}

function layout(chart) {
  const axis = { gridcolor: css("--line"), linecolor: css("--line"), zerolinecolor: css("--line"), automargin: true };
  return {
    height: 225 + 17 * Math.max(Math.ceil(chart.traces.length / 3) - 1, 0), // a legend of several lines
    margin: { l: 44, r: 8, t: chart.traces.length > 1 ? 26 : 10, b: 36 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: css("--sans"), size: 11.5, color: css("--muted") },
    xaxis: { ...axis, title: { text: chart.across ?? (chart.traces.some((trace) => trace.steps) ? "iteration" : "optimiser step"), standoff: 6, font: { size: 11.5 } }, showgrid: false, nticks: 6 },
    yaxis: { ...axis, nticks: 5, exponentformat: "power" },
    showlegend: chart.traces.length > 1,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    hovermode: chart.across ? "closest" : "x unified",
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), size: 12 } },
  };
}

function draw(place) {
  const chart = data.charts[place.dataset.chart];
  place.dataset.drawn = "";
  Plotly.react(place, lines(chart), layout(chart), { displayModeBar: false, responsive: true });
}

const plots = [...document.querySelectorAll("[data-chart]")];
const whenSeen = new IntersectionObserver(
  (entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      whenSeen.unobserve(entry.target);
      draw(entry.target);
    }
  },
  { rootMargin: "600px" },
);
const dark = matchMedia("(prefers-color-scheme: dark)");

loadPlotly().then(() => {
  plots.forEach((place) => whenSeen.observe(place));
  dark.addEventListener("change", () => plots.filter((place) => "drawn" in place.dataset).forEach(draw));
  addEventListener("beforeprint", () => plots.filter((place) => place.offsetParent).forEach(draw));
  document.documentElement.dataset.ready = "";
});

// ------------------------------------------------------------------------------------------------------------- tokens

function colour(box, key) {
  const { layers, rollouts } = data.tokens[box.dataset.tokens];
  const layer = layers.find((one) => one.key === key);
  for (const text of box.querySelectorAll("[data-rollout]")) {
    const values = rollouts[text.dataset.rollout][key] ?? [];
    for (const token of text.children) {
      const value = values[token.dataset.token] ?? 0;
      const strength = Math.min(Math.abs(value) / layer.limit, 1) * 0.75;
      token.style.background = strength > 0.01 ? `rgba(var(--${value > 0 ? "up" : "down"}), ${strength.toFixed(3)})` : "";
    }
  }
  const unit = layer.unit ? ` ${layer.unit}` : "";
  box.querySelector(".low").textContent = short(-layer.limit) + unit;
  box.querySelector(".high").textContent = short(layer.limit) + unit;
}

const tip = document.getElementById("tip");

function explain(token, box) {
  const { layers, rollouts } = data.tokens[box.dataset.tokens];
  const own = rollouts[token.parentElement.dataset.rollout];
  const head = document.createElement("b");
  head.textContent = JSON.stringify(token.textContent.replace("↵", ""));
  const table = document.createElement("table");
  for (const layer of layers.filter((one) => one.key in own)) {
    const row = table.insertRow();
    row.insertCell().textContent = layer.title;
    row.insertCell().textContent = short(own[layer.key][token.dataset.token]);
  }
  tip.replaceChildren(head, table);
  tip.hidden = false;
  const at = token.getBoundingClientRect();
  const below = at.bottom + tip.offsetHeight + 12 < innerHeight;
  tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${below ? at.bottom + 6 : at.top - tip.offsetHeight - 6}px`;
}

for (const box of document.querySelectorAll("[data-tokens]")) {
  box.addEventListener("change", (event) => colour(box, event.target.value));
  box.addEventListener("pointerover", (event) =>
    event.target.matches(".token") ? explain(event.target, box) : (tip.hidden = true),
  );
  box.addEventListener("pointerleave", () => (tip.hidden = true));
  colour(box, box.querySelector("input").value);
}

// A link to a chart opens the group that it is folded in.
addEventListener("hashchange", () => {
  const target = document.getElementById(location.hash.slice(1));
  for (let node = target?.parentElement; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  target?.scrollIntoView();
});

// Draws the strip charts of a page in the place of those that came with it, which need no script.
"use strict";

(() => {
  const drawn = new Map();

  const clock = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit" });

  function bytes(value) {
    if (value === 0) return "0 MiB";
    if (value < 2 ** 30) return `${Math.round(value / 2 ** 20)} MiB`;
    return `${Math.round(value / 2 ** 30 * 10) / 10} GiB`;
  }

  // Steps that are round in their unit: powers of two for memory, whole clients.
  function steps(unit, most) {
    if (unit === "clients") {
      const step = Math.max(1, Math.ceil(most / 4));
      return Array.from({ length: Math.max(1, Math.ceil(most / step)) + 1 }, (_, place) => place * step);
    }
    const step = 2 ** Math.max(20, Math.ceil(Math.log2(Math.max(most, 2 ** 20) / 4)));
    return Array.from({ length: Math.max(1, Math.ceil(most / step)) + 1 }, (_, place) => place * step);
  }

  // Lines share the moments at which they were looked at; one that was not there yet has none.
  function table(lines) {
    const moments = [...new Set(lines.flatMap((line) => line.points.map(([at]) => at)))].sort((a, b) => a - b);
    const place = new Map(moments.map((at, index) => [at, index]));
    const columns = lines.map((line) => {
      const column = new Array(moments.length).fill(null);
      for (const [at, value] of line.points) column[place.get(at)] = value;
      return column;
    });
    return [moments.map((at) => at / 1000), ...columns];
  }

  function options(figure, place, told, panel) {
    // Colours are the style sheet's, light or dark.
    const ink = getComputedStyle(place).color;
    const grid = getComputedStyle(figure.querySelector(".grid")).stroke;
    const most = Math.max(1, ...panel.lines.flatMap((line) => line.points.map(([, value]) => value)));
    const splits = steps(panel.unit, most);
    const font = "12px system-ui, sans-serif";
    return {
      width: place.clientWidth,
      height: place.clientHeight,
      legend: { show: false },
      cursor: { show: false },
      scales: {
        x: { range: [(told.now - told.span_ms) / 1000, told.now / 1000] },
        y: { range: [0, splits[splits.length - 1]] },
      },
      axes: [
        { stroke: ink, font, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, space: 90,
          values: (_, seconds) => seconds.map((second) => clock.format(new Date(second * 1000))) },
        { stroke: ink, font, size: 76, grid: { stroke: grid, width: 1 }, ticks: { show: false }, splits: () => splits,
          values: (_, values) => values.map((value) => panel.unit === "bytes" ? bytes(value) : String(value)) },
      ],
      series: [{}, ...panel.lines.map((line, index) => ({
        label: line.name,
        stroke: getComputedStyle(figure.querySelectorAll("polyline")[index] ?? figure.querySelector("polyline")).stroke,
        width: 2,
        points: { show: line.points.length < 2 },
      }))],
    };
  }

  function draw(told) {
    for (const panel of told.panels) {
      const figure = document.getElementById(`chart-${panel.id}`);
      const place = document.getElementById(`drawn-${panel.id}`);
      if (!figure?.querySelector("polyline") || !place.clientWidth) continue;
      drawn.get(place)?.destroy();
      drawn.set(place, new uPlot(options(figure, place, told, panel), table(panel.lines), place));
    }
    for (const [place, plot] of drawn) {
      if (!place.isConnected) { plot.destroy(); drawn.delete(place); }
    }
  }

  let last = null;
  let asking = false;

  async function ask() {
    const charts = document.querySelector("[data-history]");
    if (!charts || asking) return;
    asking = true;
    try {
      const answer = await fetch(charts.dataset.history, { headers: { Accept: "application/json" } });
      if (answer.ok) { last = await answer.json(); draw(last); }
    } catch {
      // Not connected: the page says so, and asks again.
    } finally {
      asking = false;
    }
  }

  const again = () => { if (last) draw(last); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  window.addEventListener("resize", again);
  window.mpsConsole.improve(ask);
})();

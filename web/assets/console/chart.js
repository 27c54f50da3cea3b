// Draws the strip charts of a page, whose tables need no script.
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

  // Lines share their poll times; a line that did not exist yet has no value there.
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

  function options(figure, place, answer, panel) {
    // Colours are the style sheet's, light or dark.
    const ink = getComputedStyle(place).color;
    const grid = getComputedStyle(figure).borderTopColor;
    const most = Math.max(1, ...panel.lines.flatMap((line) => line.points.map(([, value]) => value)));
    const splits = steps(panel.unit, most);
    const font = "12px system-ui, sans-serif";
    // A line that the page does not list yet has no colour.
    const swatches = figure.querySelectorAll(".key .swatch");
    const colour = (index) => swatches[index] ? getComputedStyle(swatches[index]).stroke : ink;
    return {
      width: place.clientWidth,
      height: place.clientHeight,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
      hooks: { setCursor: [(plot) => read(plot, place, panel)] },
      scales: {
        x: { range: [(answer.now - answer.span_ms) / 1000, answer.now / 1000] },
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
        stroke: colour(index),
        width: 2,
        points: { show: line.points.length < 2 },
      }))],
    };
  }

  const exact = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  // Most lines in the readout; the table below has them all.
  const READ = 8;

  function amount(unit, value) {
    if (unit === "bytes") return bytes(value);
    return value === 1 ? "1 client" : `${value} clients`;
  }

  // The values of all lines at the cursor, shown beside it.
  function read(plot, place, panel) {
    const reading = place.querySelector(".reading");
    const { idx, left } = plot.cursor;
    if (!reading) return;
    reading.hidden = idx === null || idx === undefined || left < 0 || panel.lines.length === 0;
    if (reading.hidden) return;
    const at = exact.format(new Date(plot.data[0][idx] * 1000));
    const lines = panel.lines.map((line, index) => [line.name, plot.data[index + 1][idx]])
      .filter(([, value]) => value !== null && value !== undefined)
      .sort(([, one], [, other]) => other - one);
    const rows = lines.slice(0, READ).map(([name, value]) => [name, amount(panel.unit, value)]);
    if (lines.length > READ) rows.push([`and ${lines.length - READ} more`, ""]);
    reading.replaceChildren(...[[at, ""], ...rows].map(([name, value]) => {
      const row = document.createElement("p");
      const amount = document.createElement("b");
      amount.textContent = value;
      row.append(name, amount);
      return row;
    }));
    // On the side with more room.
    const x = left + plot.over.offsetLeft;
    const isRight = x > place.clientWidth / 2;
    reading.style.left = isRight ? "" : `${x + 12}px`;
    reading.style.right = isRight ? `${place.clientWidth - x + 12}px` : "";
    place.setAttribute("aria-valuenow", idx);
    place.setAttribute("aria-valuetext", [at, ...rows.map((row) => row.join(" "))].join(", "));
  }

  // By keyboard: one time after another.
  function move(place, key) {
    const plot = drawn.get(place);
    const last = plot.data[0].length - 1;
    const now = plot.cursor.left < 0 ? last : plot.cursor.idx ?? last;
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, ArrowDown: now - 1, ArrowUp: now + 1, PageDown: now - 60,
      PageUp: now + 60, Home: 0, End: last, "": now }[key];
    if (next === undefined) return false;
    const at = plot.data[0][Math.min(Math.max(next, 0), last)];
    plot.setCursor({ left: plot.valToPos(at, "x"), top: 10 });
    return true;
  }

  function prepare(place, panel) {
    const moments = panel.lines.length ? Math.max(...panel.lines.map((line) => line.points.length)) : 0;
    if (moments === 0) {
      place.setAttribute("aria-hidden", "true");
      for (const name of ["role", "tabindex", "aria-label"]) place.removeAttribute(name);
      return;
    }
    place.removeAttribute("aria-hidden");
    place.setAttribute("role", "slider");
    place.tabIndex = 0;
    place.setAttribute("aria-label", `${panel.title} in the last hour, moment by moment`);
    place.setAttribute("aria-valuemin", 0);
    place.setAttribute("aria-valuemax", table(panel.lines)[0].length - 1);
    if (!place.hasAttribute("aria-valuenow")) place.setAttribute("aria-valuenow", table(panel.lines)[0].length - 1);
    if (place.querySelector(".reading")) return;
    const reading = document.createElement("div");
    reading.className = "reading";
    reading.hidden = true;
    place.append(reading);
    place.addEventListener("keydown", (event) => { if (move(place, event.key)) event.preventDefault(); });
    place.addEventListener("focus", () => { if (place.matches(":focus-visible")) move(place, ""); });
    place.addEventListener("blur", () => drawn.get(place).setCursor({ left: -10, top: -10 }));
  }

  function draw(answer) {
    for (const panel of answer.panels) {
      const figure = document.getElementById(`chart-${panel.id}`);
      const place = document.getElementById(`drawn-${panel.id}`);
      if (!place?.clientWidth) continue;
      prepare(place, panel);
      const before = drawn.get(place);
      const { left, top } = before?.cursor ?? { left: -10, top: -10 };
      before?.destroy();
      const plot = new uPlot(options(figure, place, answer, panel), table(panel.lines), place);
      drawn.set(place, plot);
      // The cursor stays at its time.
      if (left >= 0) plot.setCursor({ left, top });
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
      // Not connected: the page shows that, and retries.
    } finally {
      asking = false;
    }
  }

  const again = () => { if (last) draw(last); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  window.addEventListener("resize", again);
  window.mpsConsole.improve(ask);
})();

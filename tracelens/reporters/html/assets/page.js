
"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const page = JSON.parse(document.getElementById("page-data").textContent);
  const say = (text) => { document.getElementById("said").textContent = text; };

  // ------------------------------------------------------------ charts
  const prefers = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => root.dataset.theme || (prefers.matches ? "dark" : "light");
  const drawn = new Map();

  async function draw(place) {
    const chart = page.charts[place.dataset.chart];
    const rows = chart.choices && chart.choices[Number(place.dataset.choice || 0)];
    const turn = (drawn.get(place)?.turn || 0) + 1;
    const views = drawn.get(place)?.views || [];
    drawn.set(place, { turn, views });
    const made = await Promise.all(all(".panel", place).map((panel, i) => {
      const spec = structuredClone(chart.panels[i]);
      if (rows) spec.data.values = rows;
      // A row's height times the rows: told as a step, Vega-Lite would warn that it cannot fit it.
      if (spec.height.step) spec.height = spec.height.step * new Set(spec.data.values.map((row) => row.label)).size;
      return vegaEmbed(panel, spec, {
        mode: "vega-lite", renderer: "svg", actions: false, defaultStyle: false,
        logLevel: 1, // an empty layer of a chart is no news to a reader
        ast: true, // no eval: the page's policy forbids it
        config: page.themes[theme()], tooltip: { disableDefaultStyle: true },
      });
    }));
    views.forEach((view) => view.finalize());
    drawn.get(place).views = made;
    if (drawn.get(place).turn === turn) place.dataset.drawn = theme();
  }

  const places = all(".chart");
  // What is on the screen first, the rest when the browser has time: all are there before anybody prints.
  const later = globalThis.requestIdleCallback || ((task) => setTimeout(task, 30));
  const once = (place) => { if (!drawn.has(place)) draw(place); };
  if ("IntersectionObserver" in globalThis) {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); once(entry.target); }
    }, { rootMargin: "300px" });
    places.forEach((place) => seen.observe(place));
  }
  const rest = () => { const next = places.find((p) => !drawn.has(p)); if (next) { once(next); later(rest); } };
  addEventListener("load", () => later(rest));

  for (const select of all("select.choice")) {
    select.addEventListener("change", () => {
      const place = select.closest("figure").querySelector(".chart");
      place.dataset.choice = select.value;
      draw(place);
      say(`${select.closest("figure").querySelector("h3").textContent}: ${select.selectedOptions[0].textContent}`);
    });
  }

  // ------------------------------------------------------------ light and dark
  const toggle = document.getElementById("theme");
  const dress = () => {
    toggle.textContent = theme() === "dark" ? "Light" : "Dark";
    places.filter((place) => drawn.has(place)).forEach(draw);
  };
  toggle.textContent = theme() === "dark" ? "Light" : "Dark";
  toggle.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    try { localStorage.setItem("tracelens-theme", root.dataset.theme); } catch { /* not kept then */ }
    dress();
  });
  prefers.addEventListener("change", () => { if (!root.dataset.theme) dress(); });

  // ------------------------------------------------------------ tables
  // A pane that would hide a row or two shows them instead: nobody scrolls for so little.
  const fit = () => {
    for (const pane of all(".scroll:not(.whole)")) {
      if (pane.scrollHeight > pane.clientHeight && pane.scrollHeight - pane.clientHeight < 140) pane.classList.add("whole");
    }
  };
  fit();
  all("details").forEach((box) => box.addEventListener("toggle", fit));

  const order = new Intl.Collator(undefined, { numeric: true });
  // A figure may have a sign before it and an interval or a unit behind it: 1.61x [1.54, 1.68]; ≥ 0.60; 12,345.
  const figure = /^[≥≤~]?\s*([-+−]?[\d,]*\.?\d+)(?:\s*(?:x|%|v|r|ms))?(?:\s*\[.*\])?$/;
  const number = (text) => {
    const found = figure.exec(text);
    return found ? Number(found[1].replaceAll(",", "").replace("−", "-")) : NaN;
  };
  const missing = (text) => text === "" || text === "–";

  function sort(button) {
    const head = button.closest("th");
    const body = button.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") === "ascending";
    const column = Number(button.dataset.column);
    const rows = [...body.rows].map((row) => ({ row, text: row.cells[column].textContent.trim() }));
    const told = rows.filter(({ text }) => !missing(text));
    const numeric = !head.classList.contains("key") && told.every(({ text }) => !Number.isNaN(number(text)));
    const compare = numeric ? (a, b) => number(a.text) - number(b.text) : (a, b) => order.compare(a.text, b.text);
    told.sort((a, b) => (down ? -1 : 1) * compare(a, b));
    body.append(...told.map(({ row }) => row), ...rows.filter(({ text }) => missing(text)).map(({ row }) => row));
    for (const other of all("th[aria-sort]", head.closest("tr"))) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    say(`sorted by ${button.textContent}, ${down ? "descending" : "ascending"}`);
  }
  all("button.sort").forEach((button) => button.addEventListener("click", () => sort(button)));

  for (const input of all("input.filter")) {
    const rows = [...input.closest(".tablebox").querySelector("tbody").rows];
    const count = input.parentElement.querySelector(".count");
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        if (!row.hidden) shown += 1;
      }
      count.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
    });
  }

  // ------------------------------------------------------------ definitions
  const dialog = document.getElementById("definition");
  for (const link of all("a[data-term]")) {
    link.addEventListener("click", (event) => {
      const term = document.getElementById(`def-${link.dataset.term}`);
      if (!term || !dialog.showModal) return;
      event.preventDefault();
      document.getElementById("definition-title").textContent = term.querySelector("b").textContent;
      document.getElementById("definition-formula").textContent = term.querySelector("code").textContent;
      document.getElementById("definition-text").textContent = term.nextElementSibling.firstChild.textContent;
      dialog.showModal();
    });
  }
  for (const each of all("dialog")) {
    each.addEventListener("click", (event) => { if (event.target === each) each.close(); });
  }
  const opened = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target) { const box = target.matches("details") ? target : target.querySelector(":scope > details") || target.closest("details"); if (box) box.open = true; }
  };
  addEventListener("hashchange", opened);
  opened();

  // ------------------------------------------------------------ SQL
  for (const button of all("button.sql")) {
    button.addEventListener("click", async () => {
      const text = button.dataset.sql.split(" ").map((part) => page.sql[part]).join("\n");
      try {
        await navigator.clipboard.writeText(text);
        const name = button.textContent;
        button.textContent = "Copied";
        say("the SQL is in the clipboard");
        setTimeout(() => { button.textContent = name; }, 1600);
      } catch {
        const box = document.getElementById("sql");
        box.querySelector("textarea").value = text;
        box.showModal();
        box.querySelector("textarea").select();
      }
    });
  }
})();

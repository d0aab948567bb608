// Figures: plotly draws each when it becomes visible, in the colours of the theme.

const byId = (id) => document.getElementById(id);
// Width in pixels below which figures get shorter labels and a legend of one column.
const NARROW = 560;

let plotly = null;

// plotly is compressed in the page, so that the tables are usable before it is parsed.
function loadPlotly() {
  plotly ??= (async () => {
    const packed = atob(byId("plotly-source").textContent);
    const bytes = new Uint8Array(packed.length);
    for (let at = 0; at < packed.length; at++) bytes[at] = packed.charCodeAt(at);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const source = new Blob([await new Response(stream).blob()], { type: "text/javascript" });
    const src = URL.createObjectURL(source); // read on another thread, so that the page stays responsive
    await new Promise((onload, onerror) => document.head.append(element("script", { src, onload, onerror })));
    return window.Plotly;
  })();
  return plotly;
}

// -- data and layout ------------------------------------------------------------------------------

// The trace with hover texts and samples, which are stored only once in the page.
function completed(trace) {
  const deep = (value) => (Array.isArray(value) ? value.map(deep) : hover(value));
  const made = { ...trace };
  if (trace.customdata) made.text = deep(trace.customdata);
  const owners = trace.meta && trace.meta.samples_of;
  if (owners) {
    const samples = owners.map((index) => DATA.records[index].measurement.samples_ms);
    made.x = samples.flat();
    made.y = samples.flatMap((each, row) => each.map(() => row));
    made.marker = { ...trace.marker, color: samples.flatMap((each, row) => each.map(() => trace.meta.colours[row])) };
  }
  return made;
}

// A figure's value with all colours replaced for the dark theme.
function themed(value, dark) {
  if (!dark) return value;
  if (typeof value === "string") return Object.hasOwn(DATA.dark, value) ? DATA.dark[value] : value;
  if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map((each) => themed(each, dark));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, COLOURED.has(key) ? themed(each, dark) : each]));
}
// Properties that contain colours. Names and texts are unchanged.
const COLOURED = new Set(["marker", "line", "color", "colours", "error_x", "error_y", "shapes", "font", "hoverlabel", "bgcolor", "paper_bgcolor",
  "plot_bgcolor", "xaxis", "yaxis", "gridcolor", "linecolor", "colorbar", "tickfont", "title"]);

// The layout for the figure's width.
function fitted(figure, width) {
  const made = structuredClone(figure.layout);
  if (width >= NARROW) return made;
  if (made.meta && made.meta.narrow) made.yaxis.ticktext = made.meta.narrow;
  if (made.showlegend) {
    const rows = figure.data.filter((trace) => trace.showlegend !== false).length;
    made.height += 19 * Math.max(0, rows - 2);
  }
  Object.assign(made.margin, { l: 45, r: 8 });
  return made;
}

// -- ticks of logarithmic axes --------------------------------------------------------------------

const DIGITS = [[1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1]];

// 0.02, 50, 20k, 3M
function tickText(value) {
  if (value < 1e4) return String(Number(value.toPrecision(3)));
  const power = Math.min(4, Math.floor(Math.log10(value) / 3 + 1e-9));
  return `${Number((value / 1000 ** power).toPrecision(3))}${" kMGT"[power]}`;
}

// The densest ticks whose labels do not overlap, from 10**from to 10**to on `pixels`; null to let plotly choose.
function logTicks(from, to, pixels, isAcross) {
  const scale = pixels / (to - from);
  const room = (text) => (isAcross ? 7 * text.length + 12 : 20);
  const fits = (values) => values.every((value, at) => at === 0
    || scale * Math.log10(value / values[at - 1]) >= (room(tickText(value)) + room(tickText(values[at - 1]))) / 2);
  const inside = (value) => Math.log10(value) >= from - 1e-9 && Math.log10(value) <= to + 1e-9;
  const powers = Array.from({ length: Math.ceil(to) - Math.floor(from) + 1 }, (_, at) => Math.floor(from) + at);
  const sets = DIGITS.map((digits) => powers.flatMap((power) => digits.map((digit) => digit * 10 ** power)));
  for (const step of [2, 3, 4, 6]) sets.push(powers.filter((power) => power % step === 0).map((power) => 10 ** power));
  const found = sets.map((values) => values.filter(inside)).find(fits);
  return found && found.length > 1 ? found : null;
}

// Called after each drawing, zoom and resize.
function retick(plot) {
  const changes = {};
  for (const name of ["xaxis", "yaxis"]) {
    const axis = plot._fullLayout && plot._fullLayout[name];
    if (!axis || axis.type !== "log" || !(axis._length > 0)) continue;
    const [from, to] = axis.range;
    const ticks = logTicks(Math.min(from, to), Math.max(from, to), axis._length, name === "xaxis");
    const now = axis.tickmode === "array" ? axis.tickvals : null;
    if (String(ticks) === String(now)) continue;
    if (ticks) Object.assign(changes, { [`${name}.tickmode`]: "array", [`${name}.tickvals`]: ticks, [`${name}.ticktext`]: ticks.map(tickText) });
    else Object.assign(changes, { [`${name}.tickmode`]: "auto", [`${name}.tickvals`]: null, [`${name}.nticks`]: isFinite(axis._length) ? Math.max(2, Math.floor(axis._length / 70)) : 0 });
  }
  if (Object.keys(changes).length) window.Plotly.relayout(plot, changes);
}

// -- drawing --------------------------------------------------------------------------------------

function saveButtons(plot, name) {
  const save = (format) => {
    const button = element("button", { type: "button", textContent: format.toUpperCase(), title: `save as ${format.toUpperCase()}` });
    button.addEventListener("click", () => {
      const size = { width: plot.clientWidth, height: plot.clientHeight };
      window.Plotly.downloadImage(plot, { format, filename: name, scale: format === "png" ? 3 : 1, ...size });
    });
    return button;
  };
  return [save("svg"), " ", save("png")];
}

async function draw(target) {
  const figure = target.figure;
  const library = await loadPlotly();
  if (target.figure !== figure) return; // replaced meanwhile
  const plot = target.querySelector(".plot");
  const width = plot.clientWidth;
  const config = { responsive: true, displaylogo: false, displayModeBar: width < NARROW ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "toImage"] };
  const dark = isDark();
  const data = figure.data.map((trace) => themed(completed(trace), dark));
  await library.react(plot, data, themed(fitted(figure, width), dark), config);
  if (!target.dataset.listens) {
    target.dataset.listens = "yes";
    target.querySelector(".save").replaceChildren(...saveButtons(plot, target.id));
    plot.on("plotly_click", ({ points }) => {
      const index = points[0].customdata;
      if (typeof index === "number") showDetails(index);
    });
    plot.on("plotly_afterplot", () => retick(plot));
    new ResizeObserver(() => fitAgain(target)).observe(target);
  }
  target.drawnNarrow = width < NARROW;
  retick(plot);
  target.dataset.drawn = "yes";
}

// Draws one figure at a time, and lets the browser show each before the next.
let waiting = Promise.resolve();
const pause = () => new Promise((done) => setTimeout(done));
function enqueue(target) {
  waiting = waiting.then(() => draw(target)).then(pause).catch((error) => {
    target.textContent = `This browser cannot draw the figure: ${error}`;
  });
}

const views = new IntersectionObserver((seen) => {
  for (const { isIntersecting, target } of seen) {
    if (!isIntersecting) continue;
    views.unobserve(target);
    enqueue(target);
  }
}, { rootMargin: "200px" });

// plotly adapts to the width, but labels and legend differ on narrow pages.
function fitAgain(target) {
  const width = target.querySelector(".plot").clientWidth;
  if (width > 0 && target.dataset.drawn && (width < NARROW) !== target.drawnNarrow) {
    target.drawnNarrow = width < NARROW;
    enqueue(target);
  }
}

function place(id, figure) {
  const target = byId(id);
  const box = target.closest(".needs-figure");
  if (box) box.hidden = !figure;
  target.hidden = !figure;
  target.figure = figure;
  delete target.dataset.drawn;
  views.unobserve(target);
  if (!figure) return;
  target.querySelector(".plot").style.minHeight = `${figure.layout.height}px`;
  views.observe(target);
}

// Redraws in the colours of the current theme.
function drawAgain() {
  for (const target of document.querySelectorAll("figure[data-drawn]")) enqueue(target);
}

// The button shows the current choice; figures follow the theme.
function startTheme() {
  const button = byId("theme");
  const show = () => { button.textContent = `Theme: ${theme}`; };
  button.addEventListener("click", () => { nextTheme(); show(); drawAgain(); });
  prefersDark.addEventListener("change", () => { showTheme(); drawAgain(); });
  const print = (printing) => {
    isPrinting = printing;
    showTheme();
    document.querySelectorAll("figure[data-drawn]").forEach(draw); // immediately, because the browser does not wait
  };
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  button.hidden = false;
  show();
}

// -- details --------------------------------------------------------------------------------------

function flat(value, name, found) {
  const nested = value !== null && typeof value === "object";
  if (!nested) found.push([name, value === null ? "none" : String(value)]);
  else if (Array.isArray(value)) found.push([name, value.length ? value.map(String).join(", ") : "none"]);
  else for (const [key, each] of Object.entries(value)) flat(each, name ? `${name}.${key}` : key, found);
  return found;
}

// Shows [name, text] pairs.
function openDetails(title, pairs) {
  const dialog = byId("details");
  dialog.querySelector("h2").textContent = title;
  const rows = pairs.flatMap(([name, text]) => [element("dt", { textContent: name }), element("dd", { textContent: text })]);
  dialog.querySelector("dl").replaceChildren(...rows);
  if (!dialog.open) dialog.showModal();
}

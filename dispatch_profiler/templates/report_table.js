// A table that can be sorted and filtered. Inserts text as text, never as HTML. Shows one hundred rows, the rest on request.

const DATA = JSON.parse(document.getElementById("data").textContent);
const FIRST_ROWS = 100;

const number = (value) => (typeof value === "number" ? value : null);
const times = (value) => (typeof value === "number" ? `${value.toFixed(2)}x` : "");
const percent = (value) => (typeof value === "number" ? `${(100 * value).toFixed(1)} %` : "");
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// Four significant digits: 0.2610, 7.007, 1234.
function digits(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return String(value);
  if (size >= 1e9 || (size > 0 && size < 1e-4)) return value.toExponential(3);
  return size >= 1000 ? value.toFixed(0) : value.toPrecision(4);
}

// An interval behind a figure; nothing if an end is unknown.
const range = (low, high, show) => (number(low) === null || number(high) === null ? "" : ` (${show(low)} to ${show(high)})`);

// A name with possible line breaks after each underscore.
function breakable(name) {
  return name.split(/(?<=_)/).flatMap((part) => [part, element("wbr")]);
}

// A column that only the button of its table shows.
const extra = (column) => ({ ...column, extra: true });

// Missing values come last in both orders.
function ordered(one, other, sign) {
  const missing = (value) => value === null || value === undefined || value === "" || Number.isNaN(value);
  if (missing(one) || missing(other)) return missing(one) - missing(other);
  if (typeof one === "number" && typeof other === "number") return sign * (one - other);
  return sign * String(one).localeCompare(String(other), "en", { numeric: true });
}

class DataTable {
  // columns: {key, title, number, down, wrap, folds, name, unclear, extra, link(row), below(row), show(value, row)}; rows: objects with `index`.
  // A button shows the extra columns, too, which a page of usual width has no room for.
  constructor(place, columns, rows, { choose, failed, sort, hint }) {
    Object.assign(this, { columns, rows, choose, failed, sort, limit: FIRST_ROWS, chosen: null, isWide: false });
    this.filter = element("input", { type: "search", placeholder: hint });
    this.filter.setAttribute("aria-label", "filter");
    this.count = element("output");
    this.more = element("button", { type: "button", hidden: true });
    this.wider = element("button", { type: "button" });
    this.head = element("tr");
    this.body = element("tbody");
    const controls = element("div", { className: "controls" }, this.filter, this.count, this.more, this.wider);
    const table = element("table", {}, element("thead", {}, this.head), this.body);
    place.replaceChildren(controls, element("div", { className: "scroll" }, table));
    this.filter.addEventListener("input", () => this.draw());
    this.more.addEventListener("click", () => this.drawAll());
    this.wider.addEventListener("click", () => {
      this.isWide = !this.isWide;
      this.heads();
      this.draw();
    });
    this.body.addEventListener("click", (event) => this.clicked(event));
    this.body.addEventListener("keydown", (event) => { if (event.key === "Enter") this.clicked(event); });
    this.heads();
    this.draw();
  }

  clicked(event) {
    const row = event.target.closest("tr");
    if (event.target.closest("a")) return; // the browser follows the link
    if (row && !String(getSelection())) this.choose(Number(row.dataset.index));
  }

  get shown() {
    return this.columns.filter(({ extra }) => this.isWide || !extra);
  }

  heads() {
    const left = this.columns.length - this.columns.filter(({ extra }) => !extra).length;
    this.wider.hidden = left === 0;
    this.wider.textContent = this.isWide ? "Fewer columns" : `${left} more column${left === 1 ? "" : "s"}`;
    this.head.replaceChildren(...this.shown.map((column) => {
      const button = element("button", { type: "button", textContent: column.title });
      button.addEventListener("click", () => {
        const turned = this.sort.key === column.key ? -this.sort.sign : column.down ? -1 : 1;
        this.sort = { key: column.key, sign: turned };
        this.draw();
      });
      const head = element("th", { scope: "col", className: column.number ? "number" : "" }, button);
      head.dataset.key = column.key;
      return head;
    }));
  }

  show(rows, columns = this.columns) {
    Object.assign(this, { rows, columns, limit: FIRST_ROWS });
    this.heads();
    this.draw();
  }

  // A row must contain every word; `gflops>100` compares a column by its key.
  matches() {
    const tests = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
      const [, key, sign, number] = word.match(/^(\w+)(<=|>=|<|>|=)(-?[\d.]+(?:e-?\d+)?)$/) || [];
      const column = key && this.columns.find((each) => each.key === key && each.number);
      if (!column) return (row) => row.search.includes(word);
      const compare = { "<": (v) => v < number, ">": (v) => v > number, "=": (v) => v === Number(number),
        "<=": (v) => v <= number, ">=": (v) => v >= number }[sign];
      return (row) => typeof row.values[key] === "number" && compare(row.values[key]);
    });
    return this.rows.filter((row) => tests.every((test) => test(row)));
  }

  draw() {
    const { key, sign } = this.sort;
    const found = this.matches().sort((a, b) => ordered(a.values[key], b.values[key], sign) || a.index - b.index);
    for (const head of this.head.children) {
      const mine = head.dataset.key === key;
      head.setAttribute("aria-sort", mine ? (sign > 0 ? "ascending" : "descending") : "none");
    }
    this.body.replaceChildren(...found.slice(0, this.limit).map((row) => this.line(row)));
    const all = found.length <= this.limit ? found.length : `the first ${this.limit} of ${found.length} matches, out`;
    this.count.textContent = `${all} of ${this.rows.length} row${this.rows.length === 1 ? "" : "s"}`;
    this.more.hidden = found.length <= this.limit;
    this.more.textContent = `Show all ${found.length}`;
  }

  drawAll() {
    this.limit = Infinity;
    this.draw();
  }

  line(row) {
    const line = element("tr", { tabIndex: 0 });
    line.dataset.index = row.index;
    line.classList.toggle("failed", Boolean(this.failed && this.failed(row)));
    line.classList.toggle("chosen", row.index === this.chosen);
    for (const column of this.shown) {
      const value = row.values[column.key];
      const text = column.show ? column.show(value, row) : digits(value);
      const parts = column.name ? breakable(text) : [text];
      const cell = element("td", {}, ...(column.link ? [element("a", { href: column.link(row) }, ...parts)] : parts));
      if (column.below) cell.append(element("div", { className: "below", textContent: column.below(row) }));
      cell.className = column.number ? "number" : column.wrap ? "wrap" : column.name ? "name" : "";
      cell.classList.toggle("folds", Boolean(column.folds));
      if (column.unclear && row.values.is_unclear) {
        cell.classList.add("unclear");
        cell.title = "the 95 % interval of the speedup includes 1";
      } else if (column.number && typeof value === "number") cell.title = String(value);
      line.append(cell);
    }
    return line;
  }

  choosing(index) {
    this.chosen = index;
    for (const line of this.body.children) line.classList.toggle("chosen", Number(line.dataset.index) === index);
  }
}

function searchable(values) {
  return Object.values(values).filter((value) => typeof value === "string").join(" ").toLowerCase();
}

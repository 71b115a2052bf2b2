{# Sorts a table by the column whose head is clicked. Without this script, the rows stay sorted by name. #}
const order = new Intl.Collator(undefined, { numeric: true }).compare;
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      const text = row => row.cells[place].textContent;
      const rows = [...body.rows].sort((a, b) => (up ? 1 : -1) * order(text(a), text(b)));
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      body.append(...rows);
    });
  });
}

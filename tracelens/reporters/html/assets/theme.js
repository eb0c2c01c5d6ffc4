
// Before anything is drawn: the theme that the reader chose last, and a mark that scripts run.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const kept = localStorage.getItem("tracelens-theme");
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch { /* a browser may forbid it for files */ }
})();

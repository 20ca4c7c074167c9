// Takes the colours and the links from Airflow's interface around the page.

const dark = matchMedia("(prefers-color-scheme: dark)");

/** The document of Airflow's interface; null where the page was opened by itself. */
function around() {
  try {
    return window.parent === window ? null : window.parent.document;
  } catch {
    return null; // framed by something else, which the page's policy forbids anyway
  }
}

/** Be dark when Airflow is, now and after each change; when opened by itself, as the system is. */
export function followTheme() {
  const root = around()?.documentElement ?? null;
  const apply = () => {
    const isDark = root === null ? dark.matches : root.classList.contains("dark");
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
  };
  if (root !== null) new MutationObserver(apply).observe(root, { attributes: true, attributeFilter: ["class"] });
  dark.addEventListener("change", apply);
  apply();
}

/**
 * A link into Airflow's interface.
 *
 * The frame may not navigate the window around it, so a click is made in Airflow's own document.
 */
export function link(url, text) {
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.textContent = text;
  anchor.addEventListener("click", (event) => {
    const outside = around();
    if (outside === null) return;
    event.preventDefault();
    const twin = outside.createElement("a");
    twin.href = anchor.href;
    if (event.ctrlKey || event.metaKey || event.shiftKey) twin.target = "_blank";
    twin.rel = "noopener";
    outside.body.append(twin);
    twin.click();
    twin.remove();
  });
  return anchor;
}

/* The views of the page. One of them is shown at a time. A view's address is `#` and its name, so that links and the
 * browser's back button work. */

const sections = [...document.querySelectorAll("[data-view]")];
const links = [...document.querySelectorAll("nav a")];

/** Return the view in the address, or null if the address is not that of a view, as with the skip link. */
const named = () => sections.find(({ dataset }) => `#${dataset.view}` === location.hash) ?? (location.hash ? null : sections[0]);

const shown = () => sections.find((section) => !section.hidden);

/** Follow the address. `onShow` maps names of views to functions that are called when the view is shown. */
export function followAddress(onShow) {
  const show = (view) => {
    for (const section of sections) section.hidden = section !== view;
    for (const link of links) {
      if (link.hash === `#${view.dataset.view}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.title = `${links.find((link) => link.hasAttribute("aria-current")).textContent} · gathernd`;
    onShow[view.dataset.view]?.();
  };
  show(named() ?? sections[0]);
  addEventListener("hashchange", () => {
    const view = named();
    if (!view || view === shown()) return;
    show(view);
    scrollTo(0, 0);
    view.querySelector("h1").focus({ preventScroll: true });
  });
}

/** Go to a view. Resolves once it is shown. */
export async function goTo(name) {
  const changed = location.hash !== `#${name}` && new Promise((resolve) => addEventListener("hashchange", resolve, { once: true }));
  location.hash = name;
  await changed;
}

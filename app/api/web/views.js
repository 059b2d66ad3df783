/* The views of the page, of which one is shown at a time. The address of each is `#` and its name, so links lead to it and
 * the browser's back button works. */

const sections = [...document.querySelectorAll("[data-view]")];
const links = [...document.querySelectorAll("nav a")];

/** The view that the address names; null if it names none, as that of the link to the content. */
const named = () => sections.find(({ dataset }) => `#${dataset.view}` === location.hash) ?? (location.hash ? null : sections[0]);

const shown = () => sections.find((section) => !section.hidden);

/** Follow the address. `onShow` maps names of views to what is to be done when one is shown. */
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

/** Go to a view, and resolve once it is shown. */
export async function goTo(name) {
  const changed = location.hash !== `#${name}` && new Promise((resolve) => addEventListener("hashchange", resolve, { once: true }));
  location.hash = name;
  await changed;
}

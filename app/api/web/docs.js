/* Shows the OpenAPI description with Swagger UI, without unsupported routes and with the protocol collapsed. */

const COLLAPSED = ["inference protocol", "health", "pages"];
const METHODS = ["get", "put", "post", "delete"];

const description = await (await fetch("openapi.json")).json();
for (const [path, operations] of Object.entries(description.paths)) {
  for (const method of METHODS) {
    if (operations[method]?.["x-not-offered"]) delete operations[method];
  }
  if (!METHODS.some((method) => operations[method])) delete description.paths[path];
}
const prefix = new URL(".", document.baseURI).pathname.replace(/\/$/, "");
if (prefix) description.servers = [{ url: prefix }];

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

const ui = window.SwaggerUIBundle({
  spec: description,
  domNode: document.getElementById("swagger-ui"),
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  deepLinking: true,
  tryItOutEnabled: true,
  validatorUrl: null,
  onComplete: () => {
    for (const tag of COLLAPSED) ui.layoutActions.show(["operations-tag", tag], false);
  },
});

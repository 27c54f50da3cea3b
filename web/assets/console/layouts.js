// The layout editor without reloads: its buttons submit the form as they do without a script, and the response replaces
// what is shown. What is typed meanwhile is never lost: a response to older text is discarded, and
// the form is submitted again.
"use strict";

(() => {
  // Copies the text of a file into the field named by its input.
  document.addEventListener("change", async (event) => {
    const file = event.target.matches("input[type=file][data-into]") && event.target.files[0];
    if (!file) return;
    document.getElementById(event.target.dataset.into).value = await file.text();
    // Choosing a file selects it as the source.
    const source = document.getElementById(event.target.dataset.chooses ?? "");
    if (source) source.checked = true;
  });

  const form = document.getElementById("editor");
  if (!form) return;
  let sending = 0;
  // Whether the session had ended at the last request: then buttons submit the form as they do without a script, which leads
  // through the login page.
  let isOver = false;
  // Buttons that wait for their response.
  let pressing = 0;

  const typed = () => new URLSearchParams(new FormData(form));

  // The response to the form; null if there is none, or if a newer request was sent.
  async function ask(what) {
    const mine = ++sending;
    for (;;) {
      const before = typed();
      const body = new URLSearchParams([...before, ...Object.entries(what)]);
      let status, text;
      try {
        const answer = await fetch(form.action, { method: "POST", body, headers: { Accept: "text/html" } });
        text = await answer.text();
        status = answer.ok ? 0 : answer.status;
      } catch {
        // No response, or an incomplete one.
      }
      if (mine !== sending) return null;
      isOver = status === 401;
      if (status !== 0) { window.mpsConsole.outdated(document.getElementById("outcome"), status); return null; }
      window.mpsConsole.upToDate();
      if (typed().toString() === before.toString()) return new DOMParser().parseFromString(text, "text/html");
    }
  }

  const put = (shown, id) => document.getElementById(id).replaceWith(document.adoptNode(shown.getElementById(id)));

  // Errors are shown beside each field, and no field is changed.
  function tell(shown) {
    put(shown, "outcome");
    for (const errors of document.querySelectorAll(".step-errors")) {
      const now = shown.getElementById(errors.id);
      if (now) errors.replaceWith(document.adoptNode(now));
    }
    for (const field of form.querySelectorAll("#steps input[id], #sku")) {
      const now = shown.getElementById(field.id);
      field.toggleAttribute("aria-invalid", now?.getAttribute("aria-invalid") === "true");
      if (now?.hasAttribute("aria-invalid")) field.setAttribute("aria-invalid", "true");
    }
  }

  form.addEventListener("submit", async (event) => {
    const pressed = event.submitter?.value;
    if (!pressed || pressed === "save" || pressed === "check" || isOver) return;
    event.preventDefault();
    const verb = pressed.split("-")[0];
    pressing += 1;
    const shown = await ask({ do: pressed, lenient: "yes" });
    pressing -= 1;
    if (isOver) form.requestSubmit(event.submitter);
    if (!shown) return;
    const next = shown.querySelector("#steps [autofocus]")?.id;
    put(shown, "steps");
    put(shown, "messages");
    put(shown, "outcome");
    // The focus follows a moved step, so that it can be moved further with the same key.
    const field = next && document.getElementById(next);
    const again = field && (verb === "up" || verb === "down")
      && field.closest(".step").querySelector(`.moves button[value^="${verb}-"]:not(:disabled)`);
    (again || field || form.querySelector('button[value="add"]')).focus();
  }, true);

  let timer = null;
  form.addEventListener("input", (event) => {
    if (event.target.id === "note" || event.target.id === "name") return;
    clearTimeout(timer);
    timer = setTimeout(async () => {
      // The pressed button has submitted the present text, and its response must not be discarded.
      if (pressing > 0) return;
      const shown = await ask({ do: "check", lenient: "yes" });
      if (shown) tell(shown);
    }, 300);
  });
})();

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
  let requests = 0;
  // Whether the session had ended at the last request: then buttons submit the form as they do without a script, which leads
  // through the login page.
  let isSessionEnded = false;
  // Buttons that wait for their response.
  let pendingButtons = 0;

  const formValues = () => new URLSearchParams(new FormData(form));

  // The response to the form; null if there is none, or if a newer request was sent.
  async function submit(extra) {
    const request = ++requests;
    for (;;) {
      const before = formValues();
      const body = new URLSearchParams([...before, ...Object.entries(extra)]);
      let status, text;
      try {
        const answer = await fetch(form.action, { method: "POST", body, headers: { Accept: "text/html" } });
        text = await answer.text();
        status = answer.ok ? 0 : answer.status;
      } catch {
        // No response, or an incomplete one.
      }
      if (request !== requests) return null;
      isSessionEnded = status === 401;
      if (status !== 0) { window.mpsConsole.markOutdated(document.getElementById("outcome"), status); return null; }
      window.mpsConsole.markUpToDate();
      if (formValues().toString() === before.toString()) return new DOMParser().parseFromString(text, "text/html");
    }
  }

  const replacePart = (response, id) => document.getElementById(id).replaceWith(document.adoptNode(response.getElementById(id)));

  // Errors are shown beside each field, and no field is changed.
  function showErrors(response) {
    replacePart(response, "outcome");
    for (const errors of document.querySelectorAll(".step-errors")) {
      const now = response.getElementById(errors.id);
      if (now) errors.replaceWith(document.adoptNode(now));
    }
    for (const field of form.querySelectorAll("#steps input[id], #sku")) {
      const now = response.getElementById(field.id);
      field.toggleAttribute("aria-invalid", now?.getAttribute("aria-invalid") === "true");
      if (now?.hasAttribute("aria-invalid")) field.setAttribute("aria-invalid", "true");
    }
  }

  form.addEventListener("submit", async (event) => {
    const pressed = event.submitter?.value;
    if (!pressed || pressed === "save" || pressed === "check" || isSessionEnded) return;
    event.preventDefault();
    const verb = pressed.split("-")[0];
    pendingButtons += 1;
    const response = await submit({ do: pressed, lenient: "yes" });
    pendingButtons -= 1;
    if (isSessionEnded) form.requestSubmit(event.submitter);
    if (!response) return;
    const next = response.querySelector("#steps [autofocus]")?.id;
    replacePart(response, "steps");
    replacePart(response, "messages");
    replacePart(response, "outcome");
    // The focus follows a moved step, so that it can be moved further with the same key.
    const field = next && document.getElementById(next);
    const sameButton = field && (verb === "up" || verb === "down")
      && field.closest(".step").querySelector(`.moves button[value^="${verb}-"]:not(:disabled)`);
    (sameButton || field || form.querySelector('button[value="add"]')).focus();
  }, true);

  let timer = null;
  form.addEventListener("input", (event) => {
    if (event.target.id === "note" || event.target.id === "name") return;
    clearTimeout(timer);
    timer = setTimeout(async () => {
      // The pressed button has submitted the present text, and its response must not be discarded.
      if (pendingButtons > 0) return;
      const response = await submit({ do: "check", lenient: "yes" });
      if (response) showErrors(response);
    }, 300);
  });
})();

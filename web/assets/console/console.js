// What the console does better with a script than without: times in the reader's zone, pages that follow what happens,
// and text that is copied at a click. Every page is whole without it.
"use strict";

(() => {
  // Times. The zone is the reader's; the exact time stands in the title, as it came.
  const hourCycle = "h23";
  const today = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle });
  const earlier = new Intl.DateTimeFormat([], {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle,
  });

  // In a column there is little room for it, and in a log each millisecond counts.
  const thisYear = new Intl.DateTimeFormat([], { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle });
  const longAgo = new Intl.DateTimeFormat([], { day: "numeric", month: "short", year: "numeric" });
  const exact = new Intl.DateTimeFormat([], { ...today.resolvedOptions(), hour: "2-digit", minute: "2-digit", second: "2-digit",
    fractionalSecondDigits: 3 });
  const exactEarlier = new Intl.DateTimeFormat([], { ...earlier.resolvedOptions(), fractionalSecondDigits: 3 });

  function tellTime(element) {
    const at = new Date(element.dateTime);
    if (Number.isNaN(at.getTime())) return;
    const now = new Date();
    const isToday = at.toDateString() === now.toDateString();
    let format = isToday ? today : earlier;
    if (element.hasAttribute("data-exact")) format = isToday ? exact : exactEarlier;
    else if (!isToday && element.closest(".events")) format = at.getFullYear() === now.getFullYear() ? thisYear : longAgo;
    element.textContent = format.format(at);
  }

  function tellTimes(root) {
    for (const element of root.querySelectorAll("time[datetime]")) tellTime(element);
  }

  // What is to be done to a page as it stands, again after each part of it that is new.
  const improvements = [tellTimes];

  const following = document.getElementById("following");

  function say(word, kind) {
    if (following.textContent !== word) following.textContent = word;
    following.dataset.is = kind;
  }

  // Why something could not be asked for; without a status there was no answer.
  function why(status) {
    if (status === undefined) return "the manager does not answer";
    if (status === 401) return "your session is over. What you typed is kept: send it, and log in on the way";
    return `the manager refused to tell (status ${status})`;
  }

  // A part of a page beside what is typed says that it is not up to date, until it is put in anew.
  function outdated(part, status) {
    let note = part.querySelector(":scope > .outdated");
    if (!note) {
      note = document.createElement("p");
      note.className = "note warn outdated";
      note.setAttribute("role", "status");
      part.prepend(note);
    }
    note.textContent = `Not up to date: ${why(status)}.`;
    say(status === 401 ? "session over" : "not connected", "lost");
  }

  function upToDate() {
    say("", "");
    delete following.dataset.is;
  }

  // Other scripts of the console add theirs.
  window.mpsConsole = {
    outdated,
    upToDate,
    improve(improvement) {
      improvements.push(improvement);
      improvement(document);
    },
  };

  function improve(root) {
    for (const improvement of improvements) improvement(root);
  }

  // A part with data-hold is not changed under a reader who is at it; the button that it names tells that there is more.
  let moved = 0;
  document.addEventListener("pointermove", () => { moved = Date.now(); }, { passive: true });

  function isAtIt(part) {
    // A log begins at its end, where nothing is scrolled.
    if (part.matches(".log")) return part.scrollTop < -4;
    const selection = getSelection();
    return part.getBoundingClientRect().top < 0
      || part.querySelector("a:focus-visible") !== null
      || (part.matches(":hover") && Date.now() - moved < 10_000)
      || (!selection.isCollapsed && part.contains(selection.anchorNode));
  }

  // What there is to read in a part, without times, which are told in the reader's zone.
  function told(part) {
    return Array.from(part.querySelectorAll("li"), (line) => line.querySelector("a")?.href
      ?? Array.from(line.childNodes, (node) => node.dateTime ?? node.textContent).join(""));
  }

  function holds(part, next) {
    if (!isAtIt(part)) {
      document.getElementById(part.dataset.hold).hidden = true;
      return false;
    }
    if (told(part).join("\n") !== told(next).join("\n")) document.getElementById(part.dataset.hold).hidden = false;
    return true;
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.newer");
    const part = button && document.querySelector(`[data-hold="${button.id}"]`);
    if (!part) return;
    button.hidden = true;
    if (part.matches(".log")) part.scrollTop = 0;
    else { getSelection().removeAllRanges(); moved = 0; window.scrollTo(0, 0); }
    (part.matches("[tabindex]") ? part : document.getElementById("page")).focus({ preventScroll: true });
    follower?.refresh();
  });
  document.addEventListener("scroll", (event) => {
    const part = event.target;
    if (!part.matches?.(".log[data-hold]") || isAtIt(part)) return;
    if (!document.getElementById(part.dataset.hold).hidden) follower?.refresh();
  }, { capture: true, passive: true });

  // Before it is compared with what is shown, a new part is made the same: nothing jumps.
  htmx.registerExtension("console", {
    htmx_before_morph_node(_, { oldNode, newNode }) {
      if (newNode instanceof HTMLTimeElement) tellTime(newNode);
      return !(oldNode.dataset?.hold && holds(oldNode, newNode));
    },
  });

  // What a section loses leaves its place empty, so that nothing below moves up to it, until its reader changes the page.
  const page = document.getElementById("page");

  function keepPlaces() {
    for (const section of page.querySelectorAll("section")) section.style.minHeight = `${section.offsetHeight}px`;
  }

  function giveUpPlaces() {
    for (const section of page.querySelectorAll("section")) section.style.minHeight = "";
  }

  window.addEventListener("resize", giveUpPlaces);
  document.addEventListener("toggle", giveUpPlaces, true);

  document.addEventListener("htmx:after:swap", () => improve(document));

  // A part that is asked for again and refused is not put into the page, which says so.
  let follower = null;

  function answered(part, status) {
    if (part.id === "page") follower?.answered(status);
    else if (status === undefined || status >= 400) outdated(part, status);
    else upToDate();
  }

  document.addEventListener("htmx:before:response", (event) => {
    const { target, response: { status } } = event.detail.ctx;
    if (status >= 400) event.preventDefault();
    answered(target, status);
  });
  document.addEventListener("htmx:error", (event) => {
    const ctx = event.detail.ctx;
    if (ctx?.target && !ctx.response) answered(ctx.target);
  });

  // Following. The server says that the page is stale, and the page asks for itself again.
  const standing = document.getElementById("standing");

  // Longest silence of a manager that is well: it says every 5 s that there is something to ask for.
  const SILENCE_MS = 15_000;

  function follow() {
    let source = null;
    let asking = false;
    let again = false;
    let timer = null;
    let isOver = false;
    // How it is followed, and since when what is shown is so.
    let how = ["", ""];
    let good = new Date();
    // When it was answered last, whatever came of it.
    let heard = Date.now();

    function tell(text) {
      if (standing.dataset.text === text) return;
      standing.dataset.text = text;
      standing.textContent = `${text} `;
      const link = document.createElement("a");
      link.href = window.location.href;
      link.textContent = "Load it again";
      standing.append(link);
      standing.hidden = false;
    }

    function isOld(status) {
      tell(`What you see is as it was at ${today.format(good)}: ${why(status)}.`);
      say(status === undefined ? "not connected" : "not up to date", "lost");
    }

    function end() {
      isOver = true;
      source?.close();
      clearInterval(timer);
    }

    function answered(status) {
      heard = Date.now();
      if (status === 401) {
        window.location.reload();
      } else if ([403, 404, 410].includes(status)) {
        end();
        tell("This is gone, or not yours any more. What you see is how it last was.");
        say("gone", "lost");
      } else if (status === undefined || status >= 400) {
        isOld(status);
      } else {
        good = new Date();
        standing.hidden = true;
        delete standing.dataset.text;
        say(...how);
      }
    }

    async function refresh() {
      if (isOver) return;
      if (document.hidden) { again = true; return; }
      if (asking) { again = true; return; }
      asking = true;
      keepPlaces();
      try {
        await htmx.ajax("GET", window.location.href, { target: "#page", select: "#page", swap: "outerMorph" });
      } finally {
        asking = false;
      }
      if (again) { again = false; refresh(); }
    }

    function connect() {
      if (isOver) return;
      source = new EventSource("/live");
      const mine = source;
      let wasLost = false;
      mine.addEventListener("open", () => {
        clearInterval(timer);
        timer = null;
        how = ["live", "live"];
        // What happened while there was no connection is not told later.
        if (wasLost) refresh();
        else if (standing.hidden) say(...how);
        wasLost = false;
      });
      mine.addEventListener("stale", refresh);
      mine.addEventListener("error", () => {
        if (isOver) return;
        if (mine.readyState === EventSource.CLOSED) {
          // Refused: as many follow as may, or the session is over. The page asks by itself then.
          how = ["every 5 s", "slow"];
          if (standing.hidden) say(...how);
          timer ??= setInterval(refresh, 5000);
          setTimeout(() => { if (source === mine) connect(); }, 30000);
        } else {
          wasLost = true;
          isOld();
        }
      });
      window.addEventListener("pagehide", () => mine.close(), { once: true });
    }

    // A browser opens a few connections to a host, and one that is kept for each page that nobody looks at would leave none.
    // A manager that hangs closes no connection: silence tells, as it answers every few seconds otherwise.
    let looked = Date.now();
    setInterval(() => {
      const now = Date.now();
      // Nothing was asked while the page was hidden, or the whole machine asleep.
      if (document.hidden || now - looked > 5000) heard = now;
      else if (!isOver && now - heard > SILENCE_MS) isOld();
      looked = now;
    }, 1000);
    document.addEventListener("visibilitychange", () => {
      if (isOver) return;
      if (document.hidden) { source?.close(); source = null; return; }
      if (!source) { again = true; connect(); }
      if (again) { again = false; refresh(); }
    });
    window.addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
    connect();
    return { answered, refresh };
  }

  // Copying: a button with data-copy copies the text of the element that it names.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copy);
    const word = button.textContent;
    try {
      await navigator.clipboard.writeText(source.value ?? source.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(source);
      button.textContent = "Selected: copy it";
    }
    setTimeout(() => { button.textContent = word; }, 2000);
  });

  // A form is sent once, however often somebody clicks.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post" || event.defaultPrevented) return;
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "yes";
    setTimeout(() => { delete form.dataset.sent; }, 5000);
  });
  window.addEventListener("pageshow", () => {
    for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
  });

  document.documentElement.classList.add("scripted");
  // On a narrow screen the places are a strip, and the one that the page is in may be beyond its end.
  // It is not scrolled into view as an element: Chromium would have the Tab key go on from there.
  const here = document.querySelector(".places [aria-current]");
  if (here) {
    const [strip, place] = [here.closest(".places"), here.getBoundingClientRect()];
    strip.scrollLeft += place.left + place.width / 2 - strip.getBoundingClientRect().left - strip.clientWidth / 2;
  }
  improve(document);
  if (page.matches("[data-live]")) follower = follow();
})();

// What pages do beyond links and forms; all of them work without.
"use strict";

document.documentElement.classList.add("with-script");

// The address that the visitor has reached, which nobody else could have put into the page.
const root = new URL(document.querySelector(".home").href);
const addresses = {
  url: root.href.replace(/\/$/, ""),
  host: root.hostname.replace(/^\[|\]$/g, ""),
};
for (const place of document.querySelectorAll("[data-address]")) {
  place.textContent = addresses[place.dataset.address];
}

// Without a secure context there is no clipboard: then the text is selected, for the keyboard.
async function take(button, text) {
  let said = "Copied";
  try {
    await navigator.clipboard.writeText(text.textContent);
  } catch {
    getSelection().selectAllChildren(text);
    said = document.execCommand("copy") ? "Copied" : "Selected";
  }
  const label = button.parentElement.parentElement.dataset.label;
  const show = (word) => {
    button.textContent = word;
    button.setAttribute("aria-label", `${word} ${label}`);
  };
  show(said);
  announcements.textContent = `${said} ${label}`;
  setTimeout(() => { show("Copy"); announcements.textContent = ""; }, 1600);
}

// Screen readers speak what changes here.
const announcements = document.createElement("p");
announcements.className = "unseen";
announcements.setAttribute("role", "status");

for (const snippet of document.querySelectorAll(".snippet")) {
  if (!announcements.isConnected) document.querySelector("main").append(announcements);
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", `Copy ${snippet.dataset.label}`);
  button.addEventListener("click", () => take(button, snippet.querySelector("code")));
  snippet.firstElementChild.append(button);
}

// A slash goes to the search, as on many sites.
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    document.querySelector("#q")?.focus();
  }
});

// The status page: when there are new figures, it is asked for again, and what differs is changed in
// place, so that a selection and the focus stay where they are.
function change(now, next) {
  if (now.nodeType !== next.nodeType || now.nodeName !== next.nodeName) {
    now.replaceWith(next.cloneNode(true));
    return;
  }
  if (now.nodeType === Node.TEXT_NODE) {
    if (now.data !== next.data) now.data = next.data;
    return;
  }
  if (now.dataset?.live !== undefined) return;
  for (const { name } of [...now.attributes]) {
    if (!next.hasAttribute(name)) now.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (now.getAttribute(name) !== value) now.setAttribute(name, value);
  }
  const [have, want] = [[...now.childNodes], [...next.childNodes]];
  want.forEach((node, index) => {
    if (index < have.length) change(have[index], node);
    else now.append(node.cloneNode(true));
  });
  have.slice(want.length).forEach((node) => node.remove());
}

function live(word) {
  let isAsking = false;
  let waits = 1000;
  const say = (text, isLive) => {
    if (word.textContent !== text) word.textContent = text;
    word.classList.toggle("is-live", isLive);
  };
  async function renew() {
    if (isAsking || document.hidden) return;
    isAsking = true;
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      change(document.querySelector("main"), next.querySelector("main"));
      say("Live", true);
      waits = 1000;
    } catch {
      say("Not live: the server does not respond. The values are out of date.", false);
    } finally {
      isAsking = false;
    }
  }
  function connect() {
    const address = new URL("./status/live", location.href);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = new WebSocket(address);
    socket.addEventListener("message", renew);
    socket.addEventListener("close", () => {
      say("Not live: connection lost. Reconnecting.", false);
      setTimeout(connect, waits);
      waits = Math.min(waits * 2, 15000);
    });
  }
  connect();
}

const word = document.querySelector("[data-live]");
if (word) live(word);

/**
 * The views of the page. A view is a module of views/ whose default export is a component; it gets `rest`, the part of
 * the address after its name. Others than the chat are loaded when they are opened: `load: () => import("./views/NAME.js")`.
 * Its label in the navigation is the word `view_NAME`.
 */
import * as chat from "./views/chat.js";

export const VIEWS = [{ name: "chat", icon: "chat", load: async () => chat }];

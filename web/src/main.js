/** Starts the page. */

import { takeToken } from './token.js';
import { App } from './ui/app.js';

new App(takeToken()).start(document.body);

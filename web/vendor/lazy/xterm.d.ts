export { Terminal } from '@xterm/xterm';
export { FitAddon } from '@xterm/addon-fit';

/** A token of Markdown; see the package `marked`. */
export interface Token { type: string; raw: string; [field: string]: any }
export function lexer(text: string, options?: { gfm?: boolean }): Token[];

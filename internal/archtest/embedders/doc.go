// Command embedders names the API that only programs that embed Toolmesh call,
// each with the page or section that promises it. It is never run: "make verify"
// looks for functions that neither a binary, an example nor this file reaches, so
// a line here is what keeps such a function in the tree.
package main

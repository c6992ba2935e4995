// Package venv turns declared dependencies into locks and locks into
// environments: folders named by their content, built beside their place and
// renamed into it, so that one either is complete or is not there. uv does the
// resolving and installing; an environment without dependencies needs nothing
// but an interpreter. The package must never run the code of an index.
package venv

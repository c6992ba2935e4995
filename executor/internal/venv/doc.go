// Package venv turns declared dependencies into locks and locks into
// environments: folders named by a digest of their content, built in a temporary
// folder and renamed, so that an environment is either complete or absent. uv
// resolves and installs; an environment without dependencies needs only an
// interpreter. The package itself never runs the code of an index.
package venv

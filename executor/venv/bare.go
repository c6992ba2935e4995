package venv

import (
	"fmt"
	"os"
	"path/filepath"
)

// Bare makes an environment in dir, in which nothing is installed, with the
// interpreter of the environment env, which a [Store] made. It returns the
// interpreter inside it.
func Bare(dir, env string) (string, error) {
	m, err := readMarker(env)
	if err != nil {
		return "", fmt.Errorf("not an environment: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // see build
		return "", err
	}
	if err := skeleton(dir, m.Interpreter); err != nil {
		return "", err
	}
	return filepath.Join(dir, "bin", "python"), nil
}

package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// durationFlag adds a flag for a duration of at least least, in Go's form or in days.
func durationFlag(cmd *cobra.Command, to *time.Duration, name string, least time.Duration, help string) {
	cmd.Flags().Func(name, help, func(text string) error {
		d, err := parseDays(text)
		if err != nil || d < least {
			return fmt.Errorf("want a time of at least %v, such as 1.5s, 24h or 7d", least)
		}
		*to = d
		return nil
	})
}

// parseDays parses a Go duration or a number of days.
func parseDays(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 15)
		return time.Duration(n) * 24 * time.Hour, err //nolint:gosec // it has 15 bits
	}
	return time.ParseDuration(text)
}

// wordFlag adds a flag for one of words; without words, for any text that is not empty: an unset shell variable does not
// mean the flag's default.
func wordFlag[T ~string](cmd *cobra.Command, to *T, name, help string, words ...T) {
	cmd.Flags().Func(name, help, func(text string) error {
		switch {
		case text == "":
			return errors.New("it is empty")
		case len(words) > 0 && !slices.Contains(words, T(text)):
			return errors.New("want one of " + join(words, ""))
		}
		*to = T(text)
		return nil
	})
	if len(words) > 0 {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(strings.Split(join(words, ""), ", "), cobra.ShellCompDirectiveNoFileComp))
	}
}

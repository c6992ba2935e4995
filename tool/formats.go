package tool

import (
	"fmt"
	"regexp"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// registerFormats replaces the formats of which the library asks more than
// tools and models mean. A date-time or time without an offset is a local one:
// Python's datetimes have none by default, and a tool that wants one without
// could never be called if each had to have it.
func registerFormats(c *jsonschema.Compiler) {
	c.RegisterFormat(&jsonschema.Format{Name: "date-time", Validate: checkText(func(text string) bool {
		return len(text) > 11 && (text[10] == 'T' || text[10] == 't' || text[10] == ' ') && isDate(text[:10]) && isTime(text[11:])
	})})
	c.RegisterFormat(&jsonschema.Format{Name: "time", Validate: checkText(isTime)})
}

// checkText makes a format of a test on text; other values have every format.
func checkText(fits func(text string) bool) func(any) error {
	return func(v any) error {
		if text, ok := v.(string); ok && !fits(text) {
			return fmt.Errorf("%.60q is not of the format", text)
		}
		return nil
	}
}

func isDate(text string) bool {
	_, err := time.Parse(time.DateOnly, text)
	return err == nil
}

// timeText is a time of day: with seconds or without, fractions, an offset or none.
var timeText = regexp.MustCompile(`^([01]\d|2[0-3]):[0-5]\d(:([0-5]\d|60)(\.\d+)?)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)?$`)

func isTime(text string) bool { return timeText.MatchString(text) }

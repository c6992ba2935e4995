# Shortens "go test -v": of a package that passed, its closing line and what it
# skipped, with the reason; of one that failed, everything.

function closing(failed) {
	printf "%s", failed ? lines : skips
	print
	fflush()
	lines = skips = ""
	split("", reason)
}

/^=== (RUN|NAME|CONT)/ { current = $3 }
/^ +[^ ]+\.go:[0-9]+: / { reason[current] = $0; sub(/^ +/, "", reason[current]) }
/^ *--- SKIP: / { skips = skips "skip " $3 "  " reason[$3] "\n"; skipped++ }

/^ok  \t/ || /^\?   \t/ { closing(0); next }
/^FAIL\t/ { closing(1); next }
/^=== PAUSE/ { next }

{ lines = lines $0 "\n" }

END {
	printf "%s", lines
	if (skipped) print skipped " Go tests skipped, reasons above"
}

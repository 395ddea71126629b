// Package sqltext reads as much of an SQL text as is needed to guard a transaction. It knows Postgres's comments,
// literals and quoted names, and no grammar.
package sqltext

import "strings"

// EndsTransaction reports whether a statement of sql begins or ends a transaction. It helps callers notice a mistake
// early; it is not the guarantee. A text can reach the server in other ways, so the state that a function leaves behind
// is checked as well.
func EndsTransaction(sql string) bool {
	for more := true; more; sql, more = nextStatement(sql) {
		first, rest := word(sql)
		if endsTransaction(first, rest) {
			return true
		}
		if first == "create" && strings.Contains(strings.ToLower(rest), "atomic") {
			return false // the body of an SQL function: its END is not a statement
		}
	}
	return false
}

// endsTransaction looks at the first words of one statement.
func endsTransaction(first, rest string) bool {
	second, rest := word(rest)
	switch first {
	case "commit", "end", "abort", "begin":
		return true
	case "start", "prepare":
		return second == "transaction"
	case "rollback":
		third, _ := word(rest)
		return second != "to" && third != "to"
	}
	return false
}

// IsPlain reports whether sql is certainly a single statement that has nothing to do with savepoints. It is false for
// many harmless texts too, such as the name of a prepared statement or a literal with a semicolon.
func IsPlain(sql string) bool {
	first, rest := word(sql)
	if rest == "" || !strings.ContainsRune(" \t\r\n(*-/'", rune(rest[0])) {
		return false
	}
	switch first {
	case "select", "insert", "update", "delete", "with", "values", "merge":
		return !strings.Contains(strings.TrimRight(rest, "; \t\r\n"), ";")
	}
	return false
}

// FirstWord returns the first word of sql in lower case. Comments before it are skipped.
func FirstWord(sql string) string {
	first, _ := word(sql)
	return first
}

// Bare returns sql with a space in place of each comment, literal and quoted name.
func Bare(sql string) string {
	var b strings.Builder
	for i := 0; i < len(sql); {
		if end := skip(sql, i); end > i {
			b.WriteByte(' ')
			i = end
			continue
		}
		b.WriteByte(sql[i])
		i++
	}
	return b.String()
}

// nextStatement returns the text after the first semicolon that is not in a literal, a quoted name or a comment.
func nextStatement(sql string) (rest string, ok bool) {
	last := strings.LastIndexByte(sql, ';') // most texts have none
	for i := 0; i <= last; {
		if end := skip(sql, i); end > i {
			i = end
			continue
		}
		if sql[i] == ';' {
			return sql[i+1:], true
		}
		i++
	}
	return "", false
}

// word returns the first word of sql in lower case, and the text after it. White space and comments before it are
// skipped. No keyword of interest is longer than 16 bytes.
func word(sql string) (first, rest string) {
	sql = skipComments(sql)
	end := 0
	for end < len(sql) && end < 16 && (sql[end]|0x20 >= 'a' && sql[end]|0x20 <= 'z') {
		end++
	}
	return strings.ToLower(sql[:end]), sql[end:]
}

// skip returns the index after the comment, literal or quoted name that begins at i, or i if none does.
func skip(sql string, i int) int {
	switch sql[i] {
	case '\'':
		escapes := i > 0 && sql[i-1]|0x20 == 'e' && (i == 1 || !inName(sql[i-2])) // E'..'
		return afterQuoted(sql, i, escapes)
	case '"':
		return afterQuoted(sql, i, false)
	case '$':
		if tag := dollarTag(sql, i); tag != "" {
			end := strings.Index(sql[i+len(tag):], tag)
			if end < 0 {
				return len(sql)
			}
			return i + end + 2*len(tag)
		}
	case '-', '/':
		if strings.HasPrefix(sql[i:], "--") || strings.HasPrefix(sql[i:], "/*") {
			return len(sql) - len(skipComments(sql[i:]))
		}
	}
	return i
}

// afterQuoted returns the index after the quoted text that begins at i. A doubled quotation mark ends the text and
// begins the next one.
func afterQuoted(sql string, i int, escapes bool) int {
	quote := sql[i]
	for i++; i < len(sql); i++ {
		switch {
		case escapes && sql[i] == '\\':
			i++
		case sql[i] == quote:
			return i + 1
		}
	}
	return len(sql)
}

// dollarTag returns the tag of the dollar-quoted literal that begins at i, or "".
func dollarTag(sql string, i int) string {
	if i > 0 && inName(sql[i-1]) {
		return ""
	}
	end := i + 1
	for end < len(sql) && inName(sql[end]) && sql[end] != '$' {
		end++
	}
	if end == len(sql) || sql[end] != '$' || end > i+1 && sql[i+1] >= '0' && sql[i+1] <= '9' {
		return ""
	}
	return sql[i : end+1]
}

func inName(c byte) bool {
	return c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c >= 0x80
}

// skipComments returns sql from its first byte that is neither white space nor part of a comment. Comments in /* */
// nest, as in Postgres.
func skipComments(sql string) string {
	for {
		sql = strings.TrimLeft(sql, " \t\r\n\f\v")
		switch {
		case strings.HasPrefix(sql, "--"):
			end := strings.IndexAny(sql, "\r\n")
			if end < 0 {
				return ""
			}
			sql = sql[end:]
		case strings.HasPrefix(sql, "/*"):
			sql = afterComment(sql[2:])
		default:
			return sql
		}
	}
}

// afterComment returns the text after the comment in which sql begins.
func afterComment(sql string) string {
	for depth := 1; depth > 0; {
		at := strings.IndexAny(sql, "*/")
		if at < 0 || at+1 == len(sql) {
			return ""
		}
		switch sql[at : at+2] {
		case "/*":
			depth++
		case "*/":
			depth--
		default:
			at-- // a single "*" or "/"
		}
		sql = sql[at+2:]
	}
	return sql
}

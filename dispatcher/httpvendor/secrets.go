package httpvendor

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// secrets are texts that must not be kept.
type secrets struct {
	texts   [][]byte
	longest int
}

const shortestSecret = 6

func newSecrets(base *url.URL, header http.Header, named []string) secrets {
	return secrets{}.with(slices.Concat(named, credentials(header), userSecrets(base)))
}

// userSecrets are what "user:password@" of a URL holds.
func userSecrets(base *url.URL) []string {
	password, ok := base.User.Password()
	if !ok {
		return nil
	}
	return []string{password, base64.StdEncoding.EncodeToString([]byte(base.User.Username() + ":" + password))}
}

// longSegment is how long a part of a path must be to count for a secret by itself.
const longSegment = 16

// addressSecrets are what else may be secret in the URL of a receiver, who is often told apart by nothing else: its path,
// what is long in that, its query, and the values in that. Pages such as "Cannot POST /hooks/..." say them again.
func addressSecrets(base *url.URL) []string {
	out := []string{strings.TrimRight(base.Path, "/"), strings.TrimRight(base.EscapedPath(), "/"), base.RawQuery}
	for segment := range strings.SplitSeq(base.Path, "/") {
		if len(segment) >= longSegment {
			out = append(out, segment)
		}
	}
	for _, values := range base.Query() {
		out = append(out, values...)
	}
	return out
}

// credentials are what an Authorization header holds.
func credentials(header http.Header) []string {
	authorization := header.Get("Authorization")
	_, bare, _ := strings.Cut(authorization, " ")
	return []string{authorization, bare}
}

// with returns s and more, in their escaped forms too.
func (s secrets) with(more []string) secrets {
	s.texts = slices.Clone(s.texts)
	add := func(text string) {
		if len(text) >= shortestSecret && !slices.ContainsFunc(s.texts, func(t []byte) bool { return string(t) == text }) {
			s.texts = append(s.texts, []byte(text))
			s.longest = max(s.longest, len(text))
		}
	}
	for _, text := range more {
		add(text)
		add(url.QueryEscape(text))
		add(url.PathEscape(text))
		if quoted, err := json.Marshal(text); err == nil {
			add(string(quoted[1 : len(quoted)-1]))
			add(strings.ReplaceAll(text, "/", `\/`))
		}
	}
	return s
}

// strike returns the first limit bytes of body, or fewer, with "[redacted]" for each run of bytes that belong to secrets.
// It sees a secret that the limit cuts in two where body goes on for as long as a secret is, and one that body's own end
// cuts in two if shortestSecret bytes of it are there.
func (s secrets) strike(body []byte, limit int) []byte {
	end := min(len(body), limit)
	var out []byte
	at := 0
	for _, run := range s.find(body) {
		if run.from >= end {
			break
		}
		if run.from >= at {
			out = append(append(out, body[at:run.from]...), "[redacted]"...)
		}
		at = max(at, run.to)
	}
	out = append(out, body[min(at, end):end]...)
	return out[:min(len(out), limit)]
}

type run struct{ from, to int }

// find returns where secrets are, in order. They may overlap.
func (s secrets) find(body []byte) (runs []run) {
	for _, text := range s.texts {
		for at := 0; ; at++ {
			i := bytes.Index(body[at:], text)
			if i < 0 {
				break
			}
			at += i
			runs = append(runs, run{at, at + len(text)})
		}
		for n := len(text) - 1; n >= shortestSecret; n-- {
			if bytes.HasSuffix(body, text[:n]) {
				runs = append(runs, run{len(body) - n, len(body)})
				break
			}
		}
	}
	slices.SortFunc(runs, func(a, b run) int { return a.from - b.from })
	return runs
}

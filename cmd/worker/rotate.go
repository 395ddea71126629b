package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"reflect"
	"sync"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/httpvendor"
)

// secretFiles reads the files of ${file:..}. After its first read, a file that cannot be used keeps its former text: a
// secret that is being replaced may be missing for a moment.
type secretFiles struct {
	mu    sync.Mutex
	texts map[string]string // of each path, the last good one
	bad   map[string]bool   // a line about it has been logged
}

func (f *secretFiles) read(path string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	text, err := readSecret(path)
	former, before := f.texts[path]
	switch {
	case err == nil:
		f.texts[path] = text
		delete(f.bad, path)
		return text, nil
	case !before:
		return "", err
	case !f.bad[path]:
		f.bad[path] = true
		slog.Warn("worker: the file of a secret cannot be used, so its former text stays in use: write the secret into it again",
			slog.String("path", path), slog.String("error", err.Error()))
	}
	return former, nil
}

// secretInterval is how old the texts of files may be. After an answer that means denied they are read at once.
const secretInterval = 5 * time.Second

// rotation gives a destination the credentials that its files have now. httpvendor calls it one call at a time.
type rotation struct {
	config  *config
	reader  *reader
	dest    *destination // as it was read at the start
	actions []*action    // of the destination
	used    httpvendor.Credentials
	told    map[string]bool // lines that are logged, and still true
}

// rotate lets the credentials of a destination change with its files. The caller has checked it.
func (c *config) rotate(r *reader, dest *destination) {
	w := &rotation{config: c, reader: r, dest: dest}
	for _, a := range c.actions {
		if a.destination == dest.Name {
			w.actions = append(w.actions, a)
		}
	}
	w.used = credentialsOf(dest, w.actions)
	dest.Credentials = w.credentials
}

// credentialsOf returns what calls carry. The destination has the secrets of the actions.
func credentialsOf(dest *destination, actions []*action) httpvendor.Credentials {
	headers := map[string]map[string]string{}
	for _, a := range actions {
		if a.files {
			headers[a.name] = a.Headers
		}
	}
	return httpvendor.Credentials{Auth: dest.Auth, Headers: dest.Headers, WebhookSecrets: dest.WebhookSecrets, URL: dest.URL, Secrets: dest.Destination.Secrets,
		ActionHeaders: headers}
}

// credentials reads the destination's part of the configuration again, as it was at the start, with the present texts
// of its files. If they make no valid destination, the former credentials stay in use.
func (w *rotation) credentials(context.Context) (httpvendor.Credentials, error) {
	again := &reader{file: w.reader.file, lookupEnv: w.reader.lookupEnv, lines: map[string]int{}, files: w.reader.files}
	dest := readDestination(again, w.dest.at)
	lines := map[string]bool{}
	if !sameHost(dest.URL, w.dest.URL) {
		lines[w.place("url")+" has another host now: restart the worker to use it"] = true
		dest.URL = w.used.URL
	}
	if dest.Proxy != w.dest.Proxy {
		lines[w.place("proxy")+" is another one now: restart the worker to use it"] = true
	}
	if dest.CAFile != w.dest.CAFile {
		lines[w.place("ca_file")+" is another one now: restart the worker to use it"] = true
	}
	var actions []*action
	for _, a := range w.actions {
		now := readAction(again, a.at)
		dest.Secrets = append(dest.Secrets, now.secrets...)
		actions = append(actions, now)
	}
	if now := credentialsOf(dest, actions); !reflect.DeepEqual(now, w.used) {
		if err := w.check(again, dest, actions); err != nil {
			lines[fmt.Sprintf("%v. The former credentials stay in use: correct the file of the secret", err)] = true
		} else {
			w.used = now
		}
	}
	w.tell(lines)
	now := w.used
	now.Until = time.Now().Add(secretInterval)
	return now, nil
}

// check returns the mistakes in a destination and its actions, each with its line.
func (w *rotation) check(again *reader, dest *destination, actions []*action) error {
	made := dest.Destination
	made.CAFile, made.ClientCertFile, made.ClientKeyFile = "", "", "" // which do not come from here
	client, err := httpvendor.New(made)
	var errs dispatcher.ConfigErrors
	errs.Join(err)
	for _, err := range errs {
		again.explain(err, w.dest.at)
	}
	for _, a := range actions {
		for _, err := range a.delivery(client).Mistakes {
			if err.Item == "" { // else it is one of the destination
				again.explain(err, a.at)
			}
		}
	}
	return again.err()
}

func (w *rotation) place(field string) string {
	path := join(w.dest.at.path, field)
	return fmt.Sprintf("%s:%d: %s", w.config.file, w.config.lines[path], path)
}

// tell logs each line once, until it is no longer true.
func (w *rotation) tell(lines map[string]bool) {
	for line := range lines {
		if !w.told[line] {
			slog.Warn("worker: " + line)
		}
	}
	w.told = lines
}

// sameHost reports whether two URLs lead to the same host over the same protocol.
func sameHost(a, b string) bool {
	one, err := url.Parse(a)
	other, err2 := url.Parse(b)
	return a == b || err == nil && err2 == nil && one.Scheme == other.Scheme && one.Host == other.Host
}

package main

import "syscall"

// attributes puts a child into a process group of its own, and lets it die with
// this process, also where this process is killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

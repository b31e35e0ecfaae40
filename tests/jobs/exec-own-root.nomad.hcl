# A task has a root and processes of its own.
# prints: 2 processes, no home of root

job "root" {
  type = "batch"

  group "root" {
    task "look" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "set -- /proc/[0-9]*; test -e /root/.profile && exit 1; set -- $(ls -d /proc/[0-9]*); echo $# processes, no home of root"]
      }
    }
  }
}

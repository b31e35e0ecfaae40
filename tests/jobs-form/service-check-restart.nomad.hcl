job "service-check-restart" {
  group "g" {
    network {
      port "a" {
      }
    }
    service {
      name = "s"
      port = "a"
      check_restart {
        limit = 3
        grace = "90s"
        ignore_warnings = true
      }
      check {
        type = "tcp"
        interval = "10s"
        timeout = "2s"
      }
      check {
        type = "tcp"
        name = "own"
        interval = "10s"
        timeout = "2s"
        check_restart {
          limit = 1
        }
      }
    }
    service {
      name = "u"
      port = "a"
      check {
        type = "tcp"
        interval = "10s"
        timeout = "2s"
        check_restart {
          limit = 2
        }
      }
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}

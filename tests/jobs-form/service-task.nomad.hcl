job "service-task" {
  group "g" {
    service {
      name = "s"
      task = "t"
      check {
        type = "script"
        name = "c"
        command = "/bin/true"
        args = ["a"]
        interval = "10s"
        timeout = "2s"
        task = "t"
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

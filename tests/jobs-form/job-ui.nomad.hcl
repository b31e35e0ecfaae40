job "job-ui" {
  ui {
    description = "what it is for"
    link {
      label = "docs"
      url = "https://docs.example"
    }
    link {
      label = "code"
      url = "https://code.example"
    }
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}

import { Component } from '@angular/core';
import { FormsModule } from '@angular/forms';
import { bootstrapApplication } from '@angular/platform-browser';
import { provideRouter } from '@angular/router';

@Component({
  selector: 'app-root',
  standalone: true,
  imports: [FormsModule],
  template: '<input [(ngModel)]="name"> Hello, {{ name }}',
})
class AppComponent {
  name = 'world';
}

bootstrapApplication(AppComponent, { providers: [provideRouter([])] });
